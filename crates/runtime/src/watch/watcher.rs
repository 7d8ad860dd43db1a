//! The loop: list, watch, resume.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{AsyncBufReadExt, StreamExt};
use kube::api::{ListParams, WatchParams};
use kube::core::Request;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout};

use super::metrics::{KindMetrics, WatchMetrics};
use super::wire::{Decoded, ErrorStatus, Identity, Line, Page, decode};
use super::{Event, ObjectKey, WatchConfig};
use crate::jitter::{Backoff, spread};

/// How much later than asked a watch may end before its connection is given up.
const GRACE: Duration = Duration::from_secs(5);
/// A watch that ended sooner than this without an event is treated as a failure, so that it is not called in a tight loop.
const SHORT: Duration = Duration::from_secs(1);

/// Follows one collection for ever. See the [module](super) for what it promises.
pub struct Watcher<T> {
    client: Client,
    url: String,
    config: WatchConfig,
    metrics: KindMetrics,
    backoff: Backoff,
    /// No call before this.
    not_before: Option<Instant>,
    state: State,
    pending: VecDeque<Event<T>>,
    /// Keys that exist and do not decode.
    quarantined: HashSet<ObjectKey>,
}

enum State {
    /// The next page is to be asked for.
    Listing { next: Option<String>, whole: bool, present: HashSet<ObjectKey> },
    /// A watch is to be opened after this version.
    Listed { version: String },
    /// A watch is open.
    Watching {
        version: String,
        lines: BoxStream<'static, std::io::Result<String>>,
        opened: Instant,
        events: u64,
    },
}

impl State {
    fn afresh() -> Self {
        Self::Listing { next: None, whole: false, present: HashSet::new() }
    }
}

/// Why a list or a watch has to be tried again.
enum Trouble {
    /// The version is too old: list again.
    Gone,
    /// Anything else, by a word for the metric.
    Other(&'static str, String),
}

impl Trouble {
    fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 410 => Self::Gone,
            kube::Error::Api(status) => {
                let reason = match status.code {
                    401 => "unauthorized",
                    403 => "forbidden",
                    404 => "not_found",
                    429 => "too_many_requests",
                    500.. => "server",
                    _ => "refused",
                };
                Self::Other(reason, status.message.clone())
            }
            other => Self::Other("connection", other.to_string()),
        }
    }
}

impl<T> Watcher<T>
where
    T: Resource<DynamicType = ()> + DeserializeOwned,
{
    /// A watcher of all `T` that `config` selects. Nothing is asked before [`Watcher::next`].
    #[must_use]
    pub fn new(client: Client, config: WatchConfig, metrics: &WatchMetrics) -> Self {
        let backoff = Backoff::new(Duration::from_millis(100), config.longest_wait);
        Self {
            client,
            url: T::url_path(&(), config.namespace.as_deref()),
            config,
            metrics: metrics.of(&T::kind(&())),
            backoff,
            not_before: None,
            state: State::afresh(),
            pending: VecDeque::new(),
            quarantined: HashSet::new(),
        }
    }

    /// The next event. Never fails and never ends; it may be dropped and called again without losing one.
    pub async fn next(&mut self) -> Event<T> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return event;
            }
            if let Some(until) = self.not_before {
                sleep_until(until).await;
                self.not_before = None;
            }
            // Each step changes `self` only after its last await, which is what makes dropping this future harmless.
            match &mut self.state {
                State::Listing { .. } => self.list().await,
                State::Listed { .. } => self.open().await,
                State::Watching { .. } => self.read().await,
            }
        }
    }

    /// The same as a stream.
    pub fn into_stream(self) -> impl futures::Stream<Item = Event<T>> + Send
    where
        T: Send + 'static,
    {
        futures::stream::unfold(self, |mut watcher| async move {
            let event = watcher.next().await;
            Some((event, watcher))
        })
    }

    async fn list(&mut self) {
        let State::Listing { next, whole, .. } = &self.state else { return };
        let (next, whole) = (next.clone(), *whole);
        let params = ListParams {
            label_selector: self.config.labels.clone(),
            field_selector: self.config.fields.clone(),
            limit: (!whole).then_some(self.config.page),
            continue_token: next,
            // No version: a consistent read. "0" may be served from memory by an API server that lost etcd.
            ..ListParams::default()
        };
        let text = match Request::new(&self.url).list(&params) {
            Ok(request) => timeout(self.config.list_within, self.client.request_text(request)).await,
            Err(error) => return self.fail(Trouble::Other("request", error.to_string())),
        };
        let text = match text {
            Ok(Ok(text)) => text,
            Ok(Err(error)) => return self.list_failed(Trouble::of(&error)),
            Err(_) => return self.list_failed(Trouble::Other("timeout", "list took too long".into())),
        };
        let page: Page<'_> = match serde_json::from_str(&text) {
            Ok(page) => page,
            Err(error) => return self.list_failed(Trouble::Other("malformed", error.to_string())),
        };
        let mut keys = Vec::new();
        for raw in page.items.into_iter().flatten() {
            match decode::<T>(raw) {
                Decoded::Good(object) => {
                    let key = ObjectKey::of(&object);
                    self.release(&key);
                    keys.push(key);
                    self.pending.push_back(Event::Applied(object));
                }
                Decoded::Bad { identity, error } => keys.extend(self.quarantine(identity.as_ref(), error)),
            }
        }
        let State::Listing { next, present, .. } = &mut self.state else { return };
        present.extend(keys);
        if !page.metadata.next.is_empty() {
            *next = Some(page.metadata.next);
            return;
        }
        if page.metadata.resource_version.is_empty() {
            return self.list_failed(Trouble::Other("malformed", "list without a version".into()));
        }
        let present = std::mem::take(present);
        self.quarantined.retain(|key| present.contains(key));
        self.count_quarantined();
        self.pending.push_back(Event::Reset(present));
        self.metrics.lists.inc();
        self.backoff.reset();
        self.state = State::Listed { version: page.metadata.resource_version };
    }

    /// A list starts over; after a continue token has expired, without pages, so that it cannot expire again.
    fn list_failed(&mut self, trouble: Trouble) {
        let whole = matches!(trouble, Trouble::Gone);
        self.fail(trouble);
        self.state = State::Listing { next: None, whole, present: HashSet::new() };
    }

    async fn open(&mut self) {
        let State::Listed { version } = &self.state else { return };
        let version = version.clone();
        let lasts = self.config.watch_for.max(GRACE);
        let params = WatchParams {
            label_selector: self.config.labels.clone(),
            field_selector: self.config.fields.clone(),
            timeout: Some(u32::try_from(spread(lasts, 0.2).as_secs()).unwrap_or(290).clamp(1, 290)),
            bookmarks: true,
            send_initial_events: false,
        };
        let opened = match Request::new(&self.url).watch(&params, &version) {
            Ok(mut request) => {
                // Compressed watches are written in one gzip member per event, which decoders end after the first of.
                request
                    .headers_mut()
                    .insert(http::header::ACCEPT_ENCODING, http::HeaderValue::from_static("identity"));
                timeout(self.config.list_within, self.client.request_stream(request)).await
            }
            Err(error) => return self.fail(Trouble::Other("request", error.to_string())),
        };
        match opened {
            Ok(Ok(body)) => {
                let lines = body.lines().boxed();
                self.state = State::Watching { version, lines, opened: Instant::now(), events: 0 };
            }
            Ok(Err(error)) => self.watch_failed(Trouble::of(&error), version),
            Err(_) => self.watch_failed(Trouble::Other("timeout", "watch did not open".into()), version),
        }
    }

    async fn read(&mut self) {
        let longest = self.config.watch_for.max(GRACE).mul_f64(1.2) + GRACE;
        let State::Watching { version, lines, opened, events } = &mut self.state else { return };
        let line = timeout(longest, lines.next()).await;
        let (version, short) = (version.clone(), *events == 0 && opened.elapsed() < SHORT);
        match line {
            Ok(Some(Ok(line))) => {
                *events += 1;
                self.backoff.reset();
                self.line(&line, version);
            }
            Ok(Some(Err(error))) => self.watch_failed(Trouble::Other("broken", error.to_string()), version),
            Ok(None) if short => {
                self.watch_failed(Trouble::Other("short", "watch ended at once".into()), version)
            }
            Ok(None) => self.state = State::Listed { version },
            Err(_) => {
                self.watch_failed(Trouble::Other("silent", "nothing came, not even the end".into()), version)
            }
        }
    }

    fn line(&mut self, line: &str, version: String) {
        let Ok(Line { kind, object: raw }) = serde_json::from_str::<Line<'_>>(line) else {
            // Cut off in the middle, or a proxy's words: go on from the last version that was understood.
            return self.watch_failed(Trouble::Other("malformed", "not a watch event".into()), version);
        };
        match kind {
            "ADDED" | "MODIFIED" | "DELETED" => self.object(kind == "DELETED", decode::<T>(raw)),
            "BOOKMARK" => self.advance(Identity::read(raw).map(|identity| identity.version().to_owned())),
            "ERROR" => {
                let status: ErrorStatus = serde_json::from_str(raw.get()).unwrap_or_default();
                let gone = status.code == 410 || matches!(status.reason.as_str(), "Expired" | "Gone");
                let trouble = if gone { Trouble::Gone } else { Trouble::Other("server", status.message) };
                self.watch_failed(trouble, version);
            }
            other => tracing::debug!(kind = other, "a watch event of an unknown type"),
        }
    }

    fn object(&mut self, deleted: bool, decoded: Decoded<T>) {
        self.metrics.events.inc();
        match decoded {
            Decoded::Good(object) => {
                let key = ObjectKey::of(&object);
                self.release(&key);
                self.advance(object.meta().resource_version.clone());
                self.pending.push_back(if deleted {
                    Event::Deleted { key, last: Some(object) }
                } else {
                    Event::Applied(object)
                });
            }
            Decoded::Bad { identity: Some(identity), .. } if deleted => {
                self.release(&identity.key());
                self.advance(Some(identity.version().to_owned()));
                self.pending.push_back(Event::Deleted { key: identity.key(), last: None });
            }
            Decoded::Bad { identity, error } => {
                self.quarantine(identity.as_ref(), error);
                self.advance(identity.map(|identity| identity.version().to_owned()));
            }
        }
    }

    /// Moves the version to resume from.
    fn advance(&mut self, to: Option<String>) {
        if let (State::Watching { version, .. }, Some(to)) = (&mut self.state, to)
            && !to.is_empty()
        {
            *version = to;
        }
    }

    fn quarantine(&mut self, identity: Option<&Identity>, error: String) -> Option<ObjectKey> {
        let key = identity.map(Identity::key);
        self.metrics.decode_failures.inc();
        if key.as_ref().is_none_or(|key| self.quarantined.insert(key.clone())) {
            let name = key.as_ref().map(ToString::to_string).unwrap_or_default();
            tracing::warn!(kind = %T::kind(&()), object = name, error, "left out an object that does not decode");
        }
        self.count_quarantined();
        self.pending.push_back(Event::Undecodable { key: key.clone(), error });
        key
    }

    fn release(&mut self, key: &ObjectKey) {
        if self.quarantined.remove(key) {
            self.count_quarantined();
        }
    }

    fn count_quarantined(&self) {
        self.metrics.quarantined.set(i64::try_from(self.quarantined.len()).unwrap_or(i64::MAX));
    }

    fn watch_failed(&mut self, trouble: Trouble, version: String) {
        self.state = match trouble {
            Trouble::Gone => State::afresh(),
            Trouble::Other(..) => State::Listed { version },
        };
        self.fail(trouble);
    }

    fn fail(&mut self, trouble: Trouble) {
        let wait = self.backoff.wait();
        let (reason, message) = match trouble {
            Trouble::Gone => ("gone", "the version is too old, listing again".to_owned()),
            Trouble::Other(reason, message) => (reason, message),
        };
        self.metrics.failed(reason);
        let kind = T::kind(&());
        match reason {
            // Daily bread of a busy cluster.
            "short" | "broken" | "gone" | "silent" => tracing::debug!(%kind, reason, message, "watch ended"),
            _ => tracing::warn!(%kind, reason, message, wait_ms = wait.as_millis(), "list or watch failed"),
        }
        self.not_before = Some(Instant::now() + wait);
    }
}
