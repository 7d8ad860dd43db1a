//! The thread that makes views after the leader's plans. Between two plans, questions have it make them again, from the
//! present on.
//!
//! It rests several times as long as it worked, so forecasts use a bounded part of a core. A question about a plan that is newer
//! than the view ends the rest as soon as that bound allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use andreas_runtime::clock;
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use super::view::View;
use crate::planning::last::LatestPlan;
use crate::predict::sampled::Forecasts;

/// Minimum time between two forecasts, and their maximum share of a core as one in this many.
const PAUSE: Duration = Duration::from_secs(2);
const SHARE: u32 = 5;
/// A view of a newer plan is waited for if the last one took at most the first, and no longer than the second.
const QUICK: Duration = Duration::from_millis(100);
const QUICK_WITHIN: Duration = Duration::from_millis(150);
/// Age from which a view is made again from the same plan, within the second of the last question.
const OLD: jiff::SignedDuration = jiff::SignedDuration::from_secs(5);
const ASKED_WITHIN: Duration = Duration::from_secs(60);

/// What the thread reads.
pub struct Sources {
    /// The leader's plans.
    pub latest: LatestPlan,
    /// Receives the forecasts.
    pub forecasts: Forecasts,
}

#[derive(Default)]
struct Demand {
    asked: Option<Instant>,
    /// A question waits for the first view, or for that of a newer plan.
    urgent: bool,
    /// How long the last view took.
    took: Duration,
}

/// Handle of the thread.
pub struct Background {
    latest: LatestPlan,
    demand: Arc<(Mutex<Demand>, Condvar)>,
    views: watch::Receiver<Option<Arc<View>>>,
    ended: Arc<AtomicBool>,
}

impl Drop for Background {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.demand.1.notify_all();
    }
}

impl Background {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    pub fn start(sources: Sources) -> std::io::Result<Arc<Self>> {
        let demand = Arc::<(Mutex<Demand>, Condvar)>::default();
        let (sender, views) = watch::channel(None);
        let ended = Arc::new(AtomicBool::new(false));
        let (asked, end) = (Arc::clone(&demand), Arc::clone(&ended));
        let latest = sources.latest.clone();
        std::thread::Builder::new()
            .name("forecasts".into())
            .spawn(move || work(&sources, &asked, &sender, &end))?;
        Ok(Arc::new(Self { latest, demand, views, ended }))
    }

    /// The newest view, which is that of the leader's last plan if views are made quickly.
    pub async fn newest(&self, within: Duration) -> Option<Arc<View>> {
        let view = self.view(within).await?;
        let is_old = self.latest.last().is_some_and(|latest| !Arc::ptr_eq(&latest, &view.latest));
        if !is_old {
            return Some(view);
        }
        let quick = {
            let mut demand = self.demand.0.lock();
            demand.urgent = true;
            self.demand.1.notify_all();
            demand.took <= QUICK
        };
        if !quick {
            return Some(view);
        }
        let mut views = self.views.clone();
        let another = |made: &Option<Arc<View>>| {
            made.as_ref().is_some_and(|made| !Arc::ptr_eq(&made.latest, &view.latest))
        };
        let made = tokio::time::timeout(QUICK_WITHIN, views.wait_for(another)).await;
        let made = made.ok().and_then(Result::ok).and_then(|made| made.clone());
        Some(made.unwrap_or(view))
    }

    /// The newest view. Waits for the first one; `None` if it takes longer than `within`.
    pub async fn view(&self, within: Duration) -> Option<Arc<View>> {
        let mut views = self.views.clone();
        {
            let mut demand = self.demand.0.lock();
            demand.asked = Some(Instant::now());
            demand.urgent |= views.borrow().is_none();
            if demand.urgent {
                self.demand.1.notify_all();
            }
        }
        let view = tokio::time::timeout(within, views.wait_for(Option::is_some)).await.ok()?.ok()?;
        view.clone()
    }
}

fn work(
    sources: &Sources,
    demand: &(Mutex<Demand>, Condvar),
    views: &watch::Sender<Option<Arc<View>>>,
    ended: &AtomicBool,
) {
    let mut rested = Instant::now();
    let mut paused = rested;
    while !ended.load(Ordering::Relaxed) {
        let (asked, urgent) = {
            let mut demanded = demand.0.lock();
            let rest = rested.saturating_duration_since(Instant::now());
            let wait = if demanded.urgent { rest } else { PAUSE };
            if !wait.is_zero() {
                demand.1.wait_for(&mut demanded, wait);
            }
            (demanded.asked.is_some_and(|at| at.elapsed() < ASKED_WITHIN), demanded.urgent)
        };
        let last_view = views.borrow().clone();
        let over = if urgent { rested } else { rested.max(paused) };
        if Instant::now() < over && last_view.is_some() {
            continue;
        }
        demand.0.lock().urgent = false;
        let Some(latest) = sources.latest.last() else { continue };
        let same = last_view.filter(|view| Arc::ptr_eq(&view.latest, &latest));
        let now = clock::now();
        let old = |view: &Arc<View>| asked && now.duration_since(view.instant()) > OLD;
        if same.as_ref().is_some_and(|view| !old(view)) {
            continue;
        }
        let began = Instant::now();
        let made = match same {
            Some(view) => view.later(now),
            None => View::new(latest),
        };
        let took = began.elapsed();
        (rested, paused) = (Instant::now() + took * (SHARE - 1), Instant::now() + PAUSE);
        demand.0.lock().took = took;
        match made {
            Ok(view) => {
                sources.forecasts.keep(view.instant(), Arc::clone(&view.forecast));
                views.send_replace(Some(Arc::new(view)));
            }
            Err(error) => tracing::error!(%error, "no forecast"),
        }
    }
}
