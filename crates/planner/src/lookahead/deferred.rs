//! Costs of starting or changing later, and when a later change means anything.

use super::classes::{Classes, Mask};
use super::cost_table::CostTable;
use super::periods::{self, PERIODS};
use super::prices::{DeferredStart, ShadowPrices};
use crate::instance::Instance;
use crate::snapshot::IntendedChange;

/// Costs of deferred starts and changes. They do not depend on what this decision moves.
pub(super) struct DeferredCosts {
    /// By job: its best later start.
    pub later: Vec<Option<DeferredStart>>,
    /// By job: the later start to which it could change meanwhile running elsewhere.
    pub change: Vec<Option<DeferredStart>>,
    /// By column: cost of running on it now and making that change.
    pub changing: Vec<f64>,
}

impl DeferredCosts {
    pub fn new(
        instance: &Instance<'_>,
        classes: &Classes,
        cost_table: &CostTable,
        shadow_prices: &ShadowPrices,
    ) -> Self {
        let tables = (classes, cost_table);
        let later: Vec<_> =
            (0..instance.jobs.len()).map(|job| shadow_prices.best_later(instance, tables, job)).collect();
        let news = News::new(instance, classes, cost_table, shadow_prices);
        let mut deferred = Self {
            change: later.iter().map(|later| news.first_change(later.as_ref()?)).collect(),
            changing: vec![f64::INFINITY; cost_table.items.len()],
            later,
        };
        for (job, change) in deferred.change.iter().enumerate() {
            let Some(change) = change else { continue };
            let again = postponed_again(instance, cost_table, job, change);
            for i in cost_table.of(job) {
                let cost = shadow_prices.changing(instance, cost_table, (job, i), change);
                deferred.changing[i] = cost + again;
            }
        }
        deferred
    }
}

/// Cost of postponing a change that the last plan intended for now: a restart. Without it an intention would be
/// given up for the smallest gain of a later one.
fn postponed_again(
    instance: &Instance<'_>,
    cost_table: &CostTable,
    job: usize,
    change: &DeferredStart,
) -> f64 {
    let data = &instance.jobs[job];
    let config = &data.configs[change.item - cost_table.of(job).start];
    let due = |intended: &&IntendedChange| {
        intended.at <= instance.snapshot.now && intended.config_is(instance, config)
    };
    match data.intended.filter(due) {
        Some(_) => {
            let lost = data.restart + data.job.lost.0;
            cost_table.restart_cost(instance, data, change.item, cost_table.delay[job], lost)
        }
        None => 0.0,
    }
}

/// Starts at which something happens to a class: an edge of tariff or budget, an expected end, a falling price.
/// At any other start a change would be no better than now. A plan that postponed it to then would postpone it
/// again and never make it.
struct News {
    /// By start: classes to which something happens.
    classes: [Mask; PERIODS],
    starts: usize,
}

impl News {
    fn new(
        instance: &Instance<'_>,
        classes: &Classes,
        cost_table: &CostTable,
        shadow_prices: &ShadowPrices,
    ) -> Self {
        let periods = &cost_table.periods;
        let starts = periods.count();
        let mut news = Self { classes: [0; PERIODS], starts };
        for edge in periods::edges(instance) {
            // The start at the edge, or the one close before it.
            let at = periods.nearest(edge);
            if at > 0 {
                news.classes[at] = Mask::MAX;
            }
        }
        for (start, mask) in news.classes.iter_mut().enumerate().take(starts).skip(1) {
            let falling = (0..classes.list.len()).filter(|class| shadow_prices.falls(*class, start));
            *mask = falling.fold(*mask, |mask, class| mask | 1 << class);
        }
        for (job, data) in instance.jobs.iter().enumerate() {
            let ends = [
                data.leaving().map(|assignment| (assignment, cost_table.delay[job])),
                data.current().map(|assignment| {
                    let item = &cost_table.items[cost_table.of(job).start + assignment.config];
                    (assignment, cost_table.delay[job] + item.time)
                }),
            ];
            for (assignment, end) in ends.into_iter().flatten() {
                let start = periods.first_from(end);
                if start < starts {
                    let of = |node: &u32| 1 << classes.of_node[*node as usize];
                    news.classes[start] |=
                        assignment.nodes.as_slice().iter().fold(0, |mask: Mask, node| mask | of(node));
                }
            }
        }
        news
    }

    /// A later start, postponed to the first one at which something happens to its class.
    fn first_change(&self, later: &DeferredStart) -> Option<DeferredStart> {
        let happens = |start: &usize| self.classes[*start] & 1 << later.class != 0;
        let start = (later.start..self.starts).find(happens)?;
        Some(DeferredStart { start, ..*later })
    }
}
