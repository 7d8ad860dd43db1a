//! Tells people of their runs: by webhook, Slack and mail, where their namespace has a Secret with addresses.
//!
//! **Nothing is queued.** What is due follows from each job's status; what was sent is written there (`status.notifications`). So nothing is lost with
//! this process, and a receiver that hangs costs no memory. **None twice**, unless this process dies between the receiver's answer and
//! the write, or while some receivers of a mail have it and others put it off; then with the same `id`. **None of others**: a message is made from the job's own status, and sent to its own namespace.
//!
//! | file | what |
//! |---|---|
//! | [`notices`] | what is due, and its words; pure |
//! | [`addresses`] | the Secret |
//! | [`send`] | one delivery |
//! | [`mail`] | one delivery by mail |

mod addresses;
mod mail;
mod notices;
mod send;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use andreas_api::Reason;
use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::Notifications;
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
/// What is older is sent to nobody: its receiver has not taken it, or was named only now.
const GIVE_UP: SignedDuration = SignedDuration::from_hours(24);
/// Time between two events about one channel.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// Time until a fault is said again.
const REMIND_EVERY: Duration = Duration::from_secs(3_600);

/// A channel of a namespace.
type ChannelKey = (String, &'static str);

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
    Sent {
        channel_key: ChannelKey,
        job: String,
        entry: String,
        result: Result<(), Failure>,
        settled: BTreeSet<String>,
        secret: String,
    },
    Written {
        job: String,
        entries: BTreeSet<String>,
        ok: bool,
    },
}

/// One job, by its UID.
#[derive(Default)]
struct Delivery {
    /// On their way: `Started/slack`.
    sending: BTreeSet<String>,
    /// Sent, or given up, and not yet in the status.
    sent: BTreeSet<String>,
    /// A write of the status is on its way.
    writing: bool,
    /// When a notice was first due.
    first: BTreeMap<String, Timestamp>,
    /// Mails that some of their receivers need no more.
    partial: BTreeMap<String, Partial>,
}

/// A mail that other receivers have put off.
struct Partial {
    /// Addresses that have it, or refused it.
    settled: BTreeSet<String>,
    failures: u32,
    until: Instant,
}

#[derive(Default)]
struct ChannelState {
    failures: u32,
    until: Option<Instant>,
    sending: usize,
    /// The last fault that was reported, and when.
    reported: Option<(String, Instant)>,
}

struct Notifier {
    shared: Arc<Shared>,
    events: Events,
    book: Arc<Mutex<Book>>,
    working: JoinSet<Done>,
    jobs: HashMap<String, Delivery>,
    channels: HashMap<ChannelKey, ChannelState>,
}

impl Notifier {
    fn new(shared: Arc<Shared>, events: Events, book: Arc<Mutex<Book>>) -> Self {
        let (jobs, channels) = (HashMap::new(), HashMap::new());
        Self { shared, events, book, working: JoinSet::new(), jobs, channels }
    }

    /// Starts the deliveries and the writes that are due.
    fn step(&mut self, now: Timestamp) {
        let (invalid, asked) = {
            let mut book = self.book.lock();
            (book.take_invalid(), book.all())
        };
        for (namespace, uid, fault) in invalid {
            self.report(&(namespace, SECRET), &uid, Reason::Invalid, fault);
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
                self.send_due(key, job, addresses, now);
                self.write(key, job, addresses, now);
            }
        }
    }

    fn send_due(
        &mut self,
        key: &ObjectKey,
        job: &SlimTrainingJob,
        addresses: &Arc<Addresses>,
        now: Timestamp,
    ) {
        let (Some(uid), Some(status)) = (job.metadata.uid.clone(), job.status.as_ref()) else { return };
        let written = status.notifications.clone().unwrap_or_default().sent;
        for notice in due(status, addresses.since.max(now - GIVE_UP)) {
            if !addresses.notices.contains(&notice) {
                continue;
            }
            for (at, channel) in addresses.channels.iter().enumerate() {
                let entry = entry(notice, channel.name());
                let delivery = self.jobs.entry(uid.clone()).or_default();
                if written.contains(&entry) || delivery.sent.contains(&entry) {
                    continue;
                }
                let first = *delivery.first.entry(entry.clone()).or_insert(now);
                // One at a time for each job and channel: in order.
                let busy = delivery.sending.iter().any(|one| one.ends_with(&format!("/{}", channel.name())));
                if busy {
                    continue;
                }
                let channel_key = (key.namespace.clone(), channel.name());
                if now.duration_since(first) > GIVE_UP {
                    delivery.partial.remove(&entry);
                    delivery.sent.insert(entry);
                    continue;
                }
                let partial = delivery.partial.get(&entry);
                if partial.is_some_and(|partial| Instant::now() < partial.until) {
                    continue;
                }
                let mut settled = partial.map(|partial| partial.settled.clone()).unwrap_or_default();
                let state = self.channels.entry(channel_key.clone()).or_default();
                if state.until.is_some_and(|until| Instant::now() < until) {
                    continue;
                }
                // A channel that failed is tried with one message.
                if state.sending >= if state.failures == 0 { AT_A_TIME } else { 1 } {
                    continue;
                }
                state.sending += 1;
                delivery.sending.insert(entry.clone());
                let message = message(job, notice, &addresses.template, now);
                let (addresses, job, secret) = (Arc::clone(addresses), uid.clone(), addresses.uid.clone());
                self.working.spawn(async move {
                    let result = send(&addresses.channels[at], &message, &mut settled).await;
                    Done::Sent { channel_key, job, entry, result, settled, secret }
                });
            }
        }
    }

    /// Writes what was sent, once nothing of the job is on its way; and the predicted end from which delays count.
    fn write(&mut self, key: &ObjectKey, job: &SlimTrainingJob, addresses: &Addresses, now: Timestamp) {
        let (Some(uid), Some(status)) = (job.metadata.uid.clone(), job.status.as_ref()) else { return };
        let delivery = self.jobs.entry(uid.clone()).or_default();
        if delivery.writing || !delivery.sending.is_empty() {
            return;
        }
        let before = status.notifications.clone();
        delivery.sent.retain(|entry| before.as_ref().is_none_or(|before| !before.sent.contains(entry)));
        let entries = delivery.sent.clone();
        let mut notifications = before.clone().unwrap_or_default();
        notifications.sent.extend(entries.iter().cloned());
        notifications.sent.sort_unstable();
        let finish = status.prediction.as_ref().and_then(|known| known.finish_time.clone());
        let everywhere = |notice| {
            addresses
                .channels
                .iter()
                .all(|channel| notifications.sent.contains(&entry(notice, channel.name())))
        };
        let delayed = everywhere(Notice::Delayed);
        let watched = addresses.notices.contains(&Notice::Delayed) && !status.phase.is_terminal();
        if watched && finish.is_some() && (delayed || notifications.finish_time.is_none()) {
            notifications.sent.retain(|entry| !entry.starts_with(Notice::Delayed.as_str()));
            delivery.first.retain(|entry, _| !entry.starts_with(Notice::Delayed.as_str()));
            (notifications.finish_time, notifications.since) = (finish, Some(Time(now)));
        }
        if before.unwrap_or_default() == notifications {
            return;
        }
        delivery.writing = true;
        let (shared, key) = (Arc::clone(&self.shared), key.clone());
        self.working.spawn(async move {
            let operations = operations(&uid, &notifications);
            let ok = match shared.writer.patch_job_status_by_operations(&key, &operations).await {
                Ok(job) => {
                    shared.index.lock().wrote_job(job);
                    true
                }
                Err(error) => {
                    tracing::debug!(job = %key, error = %error.message(), "what was sent is not written yet");
                    false
                }
            };
            Done::Written { job: uid, entries, ok }
        });
    }

    fn note(&mut self, done: Done) {
        match done {
            Done::Sent { channel_key, job, entry, result, settled, secret } => {
                let (now, name) = (Instant::now(), channel_key.1);
                let state = self.channels.entry(channel_key.clone()).or_default();
                state.sending = state.sending.saturating_sub(1);
                if !matches!(result, Err(Failure::Later(..))) {
                    (state.failures, state.until) = (0, None);
                }
                let (over, fault) = match result {
                    Ok(()) => (true, None),
                    Err(Failure::Refused(words)) => (true, Some(format!("{name}: refused: {words}"))),
                    Err(Failure::PutOff(words)) => (false, Some(format!("{name}: {words}"))),
                    Err(Failure::Later(words, after)) => {
                        // Those that were on their way together fail together.
                        if state.until.is_none_or(|until| until <= now) {
                            state.until = Some(now + after.unwrap_or(pause(state.failures)));
                            state.failures += 1;
                        }
                        (false, Some(format!("{name}: {words}")))
                    }
                };
                self.delivery(&job, |delivery| {
                    delivery.sending.remove(&entry);
                    if over {
                        delivery.partial.remove(&entry);
                        delivery.sent.insert(entry);
                    } else if !settled.is_empty() {
                        let failures = delivery.partial.get(&entry).map_or(0, |partial| partial.failures);
                        let until = now + pause(failures);
                        delivery.partial.insert(entry, Partial { settled, failures: failures + 1, until });
                    }
                });
                if let Some(fault) = fault {
                    self.report(&channel_key, &secret, Reason::NotificationFailed, fault);
                }
            }
            Done::Written { job, entries, ok } => self.delivery(&job, |delivery| {
                delivery.writing = false;
                if ok {
                    delivery.sent.retain(|entry| !entries.contains(entry));
                }
            }),
        }
    }

    fn delivery(&mut self, job: &str, change: impl FnOnce(&mut Delivery)) {
        if let Some(delivery) = self.jobs.get_mut(job) {
            change(delivery);
        }
    }

    /// An event about the Secret: in its namespace, without any of its values, and not for each message that fails.
    fn report(&mut self, channel_key: &ChannelKey, uid: &str, reason: Reason, fault: String) {
        let (state, now) = (self.channels.entry(channel_key.clone()).or_default(), Instant::now());
        if let Some((before, at)) = &state.reported
            && now < *at + if *before == fault { REMIND_EVERY } else { REPORT_EVERY }
        {
            return;
        }
        state.reported = Some((fault.clone(), now));
        let namespace = channel_key.0.as_str();
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

    /// Waits for what is on its way, and writes what was sent.
    async fn finish(&mut self) {
        while let Some(done) = self.working.join_next().await {
            let Ok(done) = done else { continue };
            self.note(done);
            let index = self.shared.index.lock();
            let sent = |uid: &str| self.jobs.get(uid).is_some_and(|delivery| !delivery.sent.is_empty());
            let jobs: Vec<_> = index
                .jobs()
                .iter()
                .filter(|(_, job)| job.metadata.uid.as_deref().is_some_and(sent))
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

/// How long a channel or a mail is left alone after so many failures.
fn pause(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.min(10)).min(MAX_PAUSE)
}

/// What stands in the status for a notice that a channel has taken.
fn entry(notice: Notice, channel: &str) -> String {
    format!("{}/{channel}", notice.as_str())
}

/// Sets what was sent of the job with this UID. Nobody else writes that field.
fn operations(uid: &str, notifications: &Notifications) -> Value {
    json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/status/notifications", "value": notifications},
    ])
}
