//! The watch loop: list, watch, resume.

mod listing;

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use futures::AsyncBufReadExt;
use kube::api::{ListParams, WatchParams};
use kube::core::Request;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout};

use super::list_splitter::{Lines, ListItem};
use super::metrics::{KindMetrics, WatchMetrics};
use super::state::{State, WatchFailure};
use super::wire::{Decoded, ErrorStatus, Identity, Line, Page, decode};
use super::{Event, ObjectKey, WatchConfig, key_of};
use crate::jitter::{Backoff, spread};

/// Objects of the first page, while their size is unknown.
const FIRST_PAGE: u32 = 50;
/// Extra time for a watch to end before its connection is abandoned.
const GRACE: Duration = Duration::from_secs(5);
/// A watch that ends sooner without an event counts as a failure, to avoid a tight loop.
const SHORT: Duration = Duration::from_secs(1);

/// Follows one collection. See the [module](super) for its guarantees.
pub struct Watcher<T> {
    client: Client,
    url: String,
    config: WatchConfig,
    metrics: KindMetrics,
    backoff: Backoff,
    /// Earliest time of the next call.
    not_before: Option<Instant>,
    state: State,
    pending: VecDeque<Event<T>>,
    /// Keys of objects that exist but do not decode.
    quarantined: HashSet<ObjectKey>,
    /// Number of objects to request in the next page.
    page: u32,
    /// The newest version of the collection seen so far.
    newest: u128,
}

impl<T> Watcher<T>
where
    T: Resource<DynamicType = ()> + DeserializeOwned,
{
    /// A watcher of all `T` that `config` selects. Sends no request before [`Watcher::next`].
    #[must_use]
    pub fn new(client: Client, config: WatchConfig, metrics: &WatchMetrics) -> Self {
        let backoff = Backoff::new(Duration::from_millis(100), config.longest_wait);
        let page = config.page.min(FIRST_PAGE);
        Self {
            client,
            url: T::url_path(&(), config.namespace.as_deref()),
            config,
            metrics: metrics.for_kind(&T::kind(&())),
            backoff,
            not_before: None,
            state: State::new_list(),
            pending: VecDeque::new(),
            quarantined: HashSet::new(),
            page,
            newest: 0,
        }
    }

    /// The next event. It never fails or ends. The future may be dropped and `next` called again without
    /// losing an event.
    pub async fn next(&mut self) -> Event<T> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return event;
            }
            if let Some(until) = self.not_before {
                sleep_until(until).await;
                self.not_before = None;
            }
            // Each step changes `self` only after its last await, so this future can be dropped safely.
            match &mut self.state {
                State::Listing(_) => self.list().await,
                State::Reading(_) => self.read_page().await,
                State::Listed { .. } => self.open().await,
                State::Quiet { .. } => self.compare_versions().await,
                State::Watching { .. } => self.read().await,
            }
        }
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
                // Compressed watches have one gzip member per event; decoders stop after the first.
                request
                    .headers_mut()
                    .insert(http::header::ACCEPT_ENCODING, http::HeaderValue::from_static("identity"));
                timeout(self.config.list_within, self.client.request_stream(request)).await
            }
            Err(error) => return self.fail(WatchFailure::Other("request", error.to_string())),
        };
        match opened {
            Ok(Ok(body)) => {
                self.state = State::Watching {
                    version,
                    body: Box::pin(body),
                    lines: Lines::default(),
                    opened: Instant::now(),
                    events: 0,
                };
            }
            Ok(Err(error)) => self.watch_failed(WatchFailure::from_error(&error), version),
            Err(_) => self.watch_failed(WatchFailure::Other("timeout", "watch did not open".into()), version),
        }
    }

    async fn read(&mut self) {
        let longest = self.config.watch_for.max(GRACE).mul_f64(1.2) + GRACE;
        let State::Watching { version, body, lines, opened, events } = &mut self.state else { return };
        let arrived = timeout(longest, body.fill_buf()).await;
        let (version, short) = (version.clone(), *events == 0 && opened.elapsed() < SHORT);
        match arrived {
            Ok(Ok([])) if short => {
                self.watch_failed(WatchFailure::Other("short", "watch ended at once".into()), version);
            }
            Ok(Ok([])) if *events == 0 => self.state = State::Quiet { version },
            Ok(Ok([])) => self.state = State::Listed { version },
            Ok(Ok(bytes)) => {
                let (used, item) = lines.feed(bytes);
                let event = item.map(|item| match item {
                    ListItem::Object(line) => read_line::<T>(line),
                    ListItem::TooLarge => WatchEvent::TooLarge,
                });
                body.as_mut().consume(used);
                if let Some(event) = event {
                    lines.clear();
                    *events += 1;
                    self.backoff.reset();
                    self.handle_event(event, version);
                }
            }
            Ok(Err(error)) => self.watch_failed(WatchFailure::Other("broken", error.to_string()), version),
            Err(_) => {
                self.watch_failed(
                    WatchFailure::Other("silent", "nothing came, not even the end".into()),
                    version,
                );
            }
        }
    }

    /// Compares the known version with the server's. A server whose database was restored sends nothing to a
    /// watch from its future, not even a bookmark (kube-apiserver, `cacheWatcher.process`).
    async fn compare_versions(&mut self) {
        let State::Quiet { version } = &self.state else { return };
        let version = version.clone();
        let params = ListParams {
            label_selector: self.config.labels.clone(),
            field_selector: self.config.fields.clone(),
            limit: Some(1),
            ..ListParams::default()
        };
        let listed = match Request::new(&self.url).list(&params) {
            Ok(request) => timeout(self.config.list_within, self.client.request::<Page>(request)).await,
            Err(error) => return self.fail(WatchFailure::Other("request", error.to_string())),
        };
        match listed {
            Ok(Ok(page)) => {
                let current = page.metadata.resource_version.parse().unwrap_or(self.newest);
                self.state =
                    if current < self.newest { State::new_list() } else { State::Listed { version } };
            }
            Ok(Err(error)) => self.watch_failed(WatchFailure::from_error(&error), version),
            Err(_) => self.watch_failed(WatchFailure::Other("timeout", "list took too long".into()), version),
        }
    }

    fn handle_event(&mut self, event: WatchEvent<T>, version: String) {
        match event {
            WatchEvent::Object { deleted, decoded } => self.apply_object(deleted, decoded),
            WatchEvent::Bookmark(version) => self.advance(version),
            WatchEvent::Error(status) => {
                let gone = status.code == 410 || matches!(status.reason.as_str(), "Expired" | "Gone");
                let failure =
                    if gone { WatchFailure::Gone } else { WatchFailure::Other("server", status.message) };
                self.watch_failed(failure, version);
            }
            // A truncated line or a proxy's message: resume from the last valid version.
            WatchEvent::Malformed => {
                self.watch_failed(WatchFailure::Other("malformed", "not a watch event".into()), version);
            }
            WatchEvent::Unknown => tracing::debug!("a watch event of an unknown type"),
            WatchEvent::TooLarge => {
                self.quarantine(None, "larger than any object may be".into());
            }
        }
    }

    fn apply_object(&mut self, deleted: bool, decoded: Decoded<T>) {
        match decoded {
            Decoded::Good(object) => {
                let key = key_of(&object);
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

    /// Sets the version to resume from.
    fn advance(&mut self, to: Option<String>) {
        if let (State::Watching { version, .. }, Some(to)) = (&mut self.state, to)
            && !to.is_empty()
        {
            self.newest = self.newest.max(to.parse().unwrap_or(0));
            *version = to;
        }
    }

    fn quarantine(&mut self, identity: Option<&Identity>, error: String) -> Option<ObjectKey> {
        let key = identity.map(Identity::key);
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

    fn watch_failed(&mut self, failure: WatchFailure, version: String) {
        self.state = match failure {
            WatchFailure::Gone => State::new_list(),
            WatchFailure::Other(..) => State::Listed { version },
        };
        self.fail(failure);
    }

    fn fail(&mut self, failure: WatchFailure) {
        let wait = self.backoff.wait();
        let (reason, error) = match failure {
            WatchFailure::Gone => ("gone", "the version is too old, listing again".to_owned()),
            WatchFailure::Other(reason, error) => (reason, error),
        };
        self.metrics.failed(reason);
        let kind = T::kind(&());
        match reason {
            // Normal on a busy cluster.
            "short" | "broken" | "gone" | "silent" => tracing::debug!(%kind, reason, error, "watch ended"),
            _ => tracing::warn!(%kind, reason, error, wait_ms = wait.as_millis(), "list or watch failed"),
        }
        self.not_before = Some(Instant::now() + wait);
    }
}

/// One line of a watch.
enum WatchEvent<T> {
    Object { deleted: bool, decoded: Decoded<T> },
    Bookmark(Option<String>),
    Error(ErrorStatus),
    Malformed,
    Unknown,
    TooLarge,
}

/// Reads a line as a watch does, and forgets it. For fuzzing: no line makes it fail.
pub fn check_line<T: DeserializeOwned + Resource>(line: &[u8]) {
    read_line::<T>(line);
}

fn read_line<T: DeserializeOwned + Resource>(line: &[u8]) -> WatchEvent<T> {
    let Ok(Line { kind, object }) = serde_json::from_slice::<Line<'_>>(line) else {
        return WatchEvent::Malformed;
    };
    let raw = object.get().as_bytes();
    match kind {
        "ADDED" | "MODIFIED" | "DELETED" => {
            WatchEvent::Object { deleted: kind == "DELETED", decoded: decode::<T>(raw) }
        }
        "BOOKMARK" => WatchEvent::Bookmark(Identity::read(raw).map(|identity| identity.version().to_owned())),
        "ERROR" => WatchEvent::Error(serde_json::from_slice(raw).unwrap_or_default()),
        _ => WatchEvent::Unknown,
    }
}
