//! Tells people of their runs: by webhook, Slack and mail, where their namespace has a Secret with addresses.
//!
//! **Nothing is queued.** What is due follows from each job's status; what was told is written there (`notified`). So nothing is lost with
//! this process, and a receiver that hangs costs no memory. **None twice**, unless this process dies between the receiver's answer and
//! the write; then with the same `id`. **None of others**: a message is made from the job's own status, and sent to its own namespace.
//!
//! | file | what |
//! |---|---|
//! | [`notices`] | what is due, and its words; pure |
//! | [`addresses`] | the Secret |
//! | [`send`] | one delivery |

mod addresses;
mod notices;
mod send;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use andreas_api::Reason;
use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::Notified;
use andreas_lifecycle::EventNote;
use andreas_runtime::clock;
use andreas_runtime::health::Health;
use andreas_runtime::watch::{ObjectKey, WatchConfig, WatchMetrics, Watcher, feed};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::executor::events::Events;
use crate::shared::Shared;
use addresses::{Addresses, Book, Hosts, SECRET, SlimSecret};
use notices::{Notice, due, message};
use send::{Failure, send};

/// Time between two looks at the jobs: with [`AT_A_TIME`] also how many messages a channel gets.
const EVERY: Duration = Duration::from_secs(1);
/// Deliveries of one channel of one namespace at a time.
const AT_A_TIME: usize = 4;
/// A channel that fails is left alone for this long, then twice as long, up to the maximum.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const MAX_PAUSE: Duration = Duration::from_secs(300);
/// What is older is told to nobody: its receiver has not taken it, or was named only now.
const GIVE_UP: SignedDuration = SignedDuration::from_hours(24);
/// Time between two events about one channel.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);
/// Time until a fault is said again.
const REMIND_EVERY: Duration = Duration::from_secs(3_600);

/// A channel of a namespace.
type Way = (String, &'static str);

/// Tells people until `end`. `hosts` are those that the administrator allows.
pub async fn run(
    shared: Arc<Shared>,
    events: Events,
    hosts: &[String],
    metrics: &WatchMetrics,
    end: CancellationToken,
) {
    let book = Arc::new(Mutex::new(Book::new(Hosts::new(hosts))));
    // The right to read Secrets of this name alone holds for reads that name it.
    let config = WatchConfig::default().fields(format!("metadata.name={SECRET}"));
    let watcher = Watcher::<SlimSecret>::new(shared.writer.client().clone(), config, metrics);
    let ready = Health::new().register("notifications");
    let feeding = tokio::spawn(feed(watcher, Arc::clone(&book), ready, end.clone()));
    let mut notifier = Notifier::new(shared, events, book);
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => notifier.step(clock::now()),
            Some(done) = notifier.working.join_next() => {
                if let Ok(done) = done {
                    notifier.note(done);
                }
            }
            () = end.cancelled() => break,
        }
    }
    // What a receiver has taken is written: else it gets it again.
    let _ = tokio::time::timeout(Duration::from_secs(5), notifier.finish()).await;
    let _ = feeding.await;
}

/// What a task of the notifier came to.
enum Done {
    Sent { way: Way, job: String, entry: String, result: Result<(), Failure>, secret: String },
    Written { job: String, entries: BTreeSet<String>, ok: bool },
}

/// One job, by its UID.
#[derive(Default)]
struct Telling {
    /// On their way: `Started/slack`.
    sending: BTreeSet<String>,
    /// Told, or given up, and not yet in the status.
    told: BTreeSet<String>,
    /// A write of the status is on its way.
    writing: bool,
    /// When a notice was first due.
    first: BTreeMap<String, Timestamp>,
}

#[derive(Default)]
struct Pause {
    failures: u32,
    until: Option<Instant>,
    sending: usize,
    /// The last fault that was said, and when.
    said: Option<(String, Instant)>,
}

struct Notifier {
    shared: Arc<Shared>,
    events: Events,
    book: Arc<Mutex<Book>>,
    working: JoinSet<Done>,
    jobs: HashMap<String, Telling>,
    ways: HashMap<Way, Pause>,
}

impl Notifier {
    fn new(shared: Arc<Shared>, events: Events, book: Arc<Mutex<Book>>) -> Self {
        let (jobs, ways) = (HashMap::new(), HashMap::new());
        Self { shared, events, book, working: JoinSet::new(), jobs, ways }
    }

    /// Starts the deliveries and the writes that are due.
    fn step(&mut self, now: Timestamp) {
        let (invalid, asked) = {
            let mut book = self.book.lock();
            (book.take_invalid(), book.all())
        };
        for (namespace, uid, fault) in invalid {
            self.complain(&(namespace, SECRET), &uid, Reason::Invalid, fault);
        }
        let jobs: Vec<(ObjectKey, Arc<SlimTrainingJob>)> = if asked.is_empty() {
            Vec::new()
        } else {
            let index = self.shared.index.lock();
            let wanted = index.jobs().iter().filter(|(key, _)| asked.contains_key(&key.namespace));
            wanted.map(|(key, job)| (key.clone(), Arc::clone(job))).collect()
        };
        let present: BTreeSet<&str> =
            jobs.iter().filter_map(|(_, job)| job.metadata.uid.as_deref()).collect();
        self.jobs.retain(|uid, _| present.contains(uid.as_str()));
        for (key, job) in &jobs {
            if let Some(addresses) = asked.get(&key.namespace) {
                self.tell(key, job, addresses, now);
                self.write(key, job, addresses, now);
            }
        }
    }

    fn tell(&mut self, key: &ObjectKey, job: &SlimTrainingJob, addresses: &Arc<Addresses>, now: Timestamp) {
        let (Some(uid), Some(status)) = (job.metadata.uid.clone(), job.status.as_ref()) else { return };
        let written = status.notified.clone().unwrap_or_default().told;
        for notice in due(status, addresses.since.max(now - GIVE_UP)) {
            if !addresses.notices.contains(&notice) {
                continue;
            }
            for (at, channel) in addresses.channels.iter().enumerate() {
                let entry = entry(notice, channel.name());
                let telling = self.jobs.entry(uid.clone()).or_default();
                if written.contains(&entry) || telling.told.contains(&entry) {
                    continue;
                }
                let first = *telling.first.entry(entry.clone()).or_insert(now);
                // One at a time for each job and channel: in order.
                let busy = telling.sending.iter().any(|one| one.ends_with(&format!("/{}", channel.name())));
                if busy {
                    continue;
                }
                let way = (key.namespace.clone(), channel.name());
                if now.duration_since(first) > GIVE_UP {
                    telling.told.insert(entry);
                    continue;
                }
                let pause = self.ways.entry(way.clone()).or_default();
                if pause.until.is_some_and(|until| Instant::now() < until) {
                    continue;
                }
                // A channel that failed is tried with one message.
                if pause.sending >= if pause.failures == 0 { AT_A_TIME } else { 1 } {
                    continue;
                }
                pause.sending += 1;
                telling.sending.insert(entry.clone());
                let message = message(job, notice, &addresses.template, now);
                let (addresses, job, secret) = (Arc::clone(addresses), uid.clone(), addresses.uid.clone());
                self.working.spawn(async move {
                    let result = send(&addresses.channels[at], &message).await;
                    Done::Sent { way, job, entry, result, secret }
                });
            }
        }
    }

    /// Writes what was told, once nothing of the job is on its way; and the predicted end from which delays count.
    fn write(&mut self, key: &ObjectKey, job: &SlimTrainingJob, addresses: &Addresses, now: Timestamp) {
        let (Some(uid), Some(status)) = (job.metadata.uid.clone(), job.status.as_ref()) else { return };
        let telling = self.jobs.entry(uid.clone()).or_default();
        if telling.writing || !telling.sending.is_empty() {
            return;
        }
        let before = status.notified.clone();
        telling.told.retain(|entry| before.as_ref().is_none_or(|before| !before.told.contains(entry)));
        let entries = telling.told.clone();
        let mut notified = before.clone().unwrap_or_default();
        notified.told.extend(entries.iter().cloned());
        notified.told.sort_unstable();
        let finish = status.prediction.as_ref().and_then(|known| known.finish_time.clone());
        let everywhere = |notice| {
            addresses.channels.iter().all(|channel| notified.told.contains(&entry(notice, channel.name())))
        };
        let delayed = everywhere(Notice::Delayed);
        let watched = addresses.notices.contains(&Notice::Delayed) && !status.phase.is_terminal();
        if watched && finish.is_some() && (delayed || notified.finish_time.is_none()) {
            notified.told.retain(|entry| !entry.starts_with(Notice::Delayed.as_str()));
            telling.first.retain(|entry, _| !entry.starts_with(Notice::Delayed.as_str()));
            (notified.finish_time, notified.since) = (finish, Some(Time(now)));
        }
        if before.unwrap_or_default() == notified {
            return;
        }
        telling.writing = true;
        let (shared, key) = (Arc::clone(&self.shared), key.clone());
        self.working.spawn(async move {
            let operations = operations(&uid, &notified);
            let ok = match shared.writer.patch_job_status_by_operations(&key, &operations).await {
                Ok(job) => {
                    shared.index.lock().wrote_job(job);
                    true
                }
                Err(error) => {
                    tracing::debug!(job = %key, error = %error.message(), "what was told is not written yet");
                    false
                }
            };
            Done::Written { job: uid, entries, ok }
        });
    }

    fn note(&mut self, done: Done) {
        match done {
            Done::Sent { way, job, entry, result, secret } => {
                let pause = self.ways.entry(way.clone()).or_default();
                pause.sending = pause.sending.saturating_sub(1);
                let fault = match result {
                    Ok(()) => {
                        (pause.failures, pause.until) = (0, None);
                        None
                    }
                    Err(Failure::Refused(words)) => Some(format!("{}: refused: {words}", way.1)),
                    Err(Failure::Later(words, after)) => {
                        let now = Instant::now();
                        // Those that were on their way together fail together.
                        if pause.until.is_none_or(|until| until <= now) {
                            let longer =
                                FIRST_PAUSE.saturating_mul(1 << pause.failures.min(10)).min(MAX_PAUSE);
                            pause.failures += 1;
                            pause.until = Some(now + after.unwrap_or(longer));
                        }
                        self.telling(&job, |telling| telling.sending.remove(&entry));
                        return self.complain(
                            &way,
                            &secret,
                            Reason::NotificationFailed,
                            format!("{}: {words}", way.1),
                        );
                    }
                };
                self.telling(&job, |telling| {
                    telling.sending.remove(&entry);
                    telling.told.insert(entry)
                });
                if let Some(fault) = fault {
                    self.complain(&way, &secret, Reason::NotificationFailed, fault);
                }
            }
            Done::Written { job, entries, ok } => self.telling(&job, |telling| {
                telling.writing = false;
                if ok {
                    telling.told.retain(|entry| !entries.contains(entry));
                }
                ok
            }),
        }
    }

    fn telling(&mut self, job: &str, change: impl FnOnce(&mut Telling) -> bool) {
        if let Some(telling) = self.jobs.get_mut(job) {
            change(telling);
        }
    }

    /// An event about the Secret: in its namespace, without any of its values, and not for each message that fails.
    fn complain(&mut self, way: &Way, uid: &str, reason: Reason, fault: String) {
        let (pause, now) = (self.ways.entry(way.clone()).or_default(), Instant::now());
        if let Some((before, at)) = &pause.said
            && now < *at + if *before == fault { REMIND_EVERY } else { COMPLAIN_EVERY }
        {
            return;
        }
        pause.said = Some((fault.clone(), now));
        let namespace = way.0.as_str();
        tracing::info!(namespace, fault, "notifications");
        let about = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Secret".into()),
            namespace: Some(namespace.to_owned()),
            name: Some(SECRET.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        self.events.publish_about(about, &EventNote { warning: true, reason, message: fault });
    }

    /// Waits for what is on its way, and writes what was told.
    async fn finish(&mut self) {
        while let Some(done) = self.working.join_next().await {
            let Ok(done) = done else { continue };
            self.note(done);
            let index = self.shared.index.lock();
            let told = |uid: &str| self.jobs.get(uid).is_some_and(|telling| !telling.told.is_empty());
            let jobs: Vec<_> = index
                .jobs()
                .iter()
                .filter(|(_, job)| job.metadata.uid.as_deref().is_some_and(told))
                .map(|(key, job)| (key.clone(), Arc::clone(job)))
                .collect();
            drop(index);
            for (key, job) in jobs {
                let addresses = self.book.lock().of(&key.namespace);
                if let Some(addresses) = addresses {
                    self.write(&key, &job, &addresses, clock::now());
                }
            }
        }
    }
}

/// What stands in the status for a notice that a channel has taken.
fn entry(notice: Notice, channel: &str) -> String {
    format!("{}/{channel}", notice.as_str())
}

/// Sets what was told of the job with this UID. Nobody else writes that field.
fn operations(uid: &str, notified: &Notified) -> Value {
    json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/status/notified", "value": notified},
    ])
}
