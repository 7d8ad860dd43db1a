//! Lists in pages, parsed one object at a time.

use futures::AsyncBufReadExt;
use kube::Resource;
use kube::api::ListParams;
use kube::core::Request;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout, timeout_at};

use super::Watcher;
use crate::watch::list_splitter::{ListError, ListItem, ListSplitter};
use crate::watch::state::{Listing, Reading, State, WatchFailure};
use crate::watch::wire::{Decoded, Identity, Page, PageMeta, decode};
use crate::watch::{Event, ObjectKey, key_of};

/// Target maximum bytes of a page; it arrives within a second or two.
const PAGE_BYTES: usize = 32 << 20;

impl<T> Watcher<T>
where
    T: Resource<DynamicType = ()> + DeserializeOwned,
{
    /// Requests the next page.
    pub(super) async fn list(&mut self) {
        let State::Listing(listing) = &self.state else { return };
        let params = ListParams {
            label_selector: self.config.labels.clone(),
            field_selector: self.config.fields.clone(),
            limit: (!listing.whole).then_some(self.page),
            continue_token: listing.next.clone(),
            // No version: a consistent read. An API server without etcd could serve "0" from memory.
            ..ListParams::default()
        };
        let until = Instant::now() + self.config.list_within;
        let opened = match Request::new(&self.url).list(&params) {
            Ok(request) => timeout(self.config.list_within, self.client.request_stream(request)).await,
            Err(error) => return self.fail(WatchFailure::Other("request", error.to_string())),
        };
        match opened {
            Ok(Ok(body)) => {
                let State::Listing(listing) = &mut self.state else { return };
                let (listing, splitter) = (std::mem::take(listing), ListSplitter::default());
                self.state = State::Reading(Reading { listing, body: Box::pin(body), splitter, until });
            }
            Ok(Err(error)) => self.list_failed(WatchFailure::from_error(&error)),
            Err(_) => self.list_failed(too_long()),
        }
    }

    /// Parses the received part of a page.
    pub(super) async fn read_page(&mut self) {
        let State::Reading(Reading { listing, body, splitter, until }) = &mut self.state else { return };
        let mut arrived = Vec::new();
        let fed = match timeout_at(*until, body.fill_buf()).await {
            Err(_) => Err(too_long()),
            Ok(Err(error)) => Err(WatchFailure::Other("broken", error.to_string())),
            Ok(Ok(bytes)) => {
                let fed = splitter.feed(bytes, |item| arrived.push(read::<T>(item)));
                let used = bytes.len();
                body.as_mut().consume(used);
                fed.map(|()| used).map_err(malformed)
            }
        };
        listing.present.extend(arrived.iter().filter_map(key));
        for decoded in arrived {
            match decoded {
                Decoded::Good(object) => {
                    self.release(&key_of(&object));
                    self.pending.push_back(Event::Applied(object));
                }
                Decoded::Bad { identity, error } => {
                    self.quarantine(identity.as_ref(), error);
                }
            }
        }
        match fed {
            Ok(0) => self.page_ended(),
            Ok(_) => {}
            Err(failure) => self.list_failed(failure),
        }
    }

    fn page_ended(&mut self) {
        let State::Reading(Reading { listing, splitter, .. }) =
            std::mem::replace(&mut self.state, State::new_list())
        else {
            return;
        };
        if let Some(object) = splitter.mean_object() {
            let fit = PAGE_BYTES / object.max(1);
            self.page = u32::try_from(fit).unwrap_or(u32::MAX).clamp(1, self.config.page.max(1));
        }
        let page = splitter.end().map_err(malformed).and_then(|envelope| {
            serde_json::from_slice::<Page>(&envelope)
                .map_err(|error| WatchFailure::Other("malformed", error.to_string()))
        });
        match page {
            Ok(Page { metadata }) if metadata.resource_version.is_empty() => {
                self.list_failed(WatchFailure::Other("malformed", "list without a version".into()));
            }
            Ok(Page { metadata }) => self.page_read(listing, metadata),
            Err(failure) => self.list_failed(failure),
        }
    }

    fn page_read(&mut self, mut listing: Listing, page: PageMeta) {
        let version = page.resource_version.parse().unwrap_or(self.newest);
        if version < self.newest {
            // An older list means that the server's database was restored. Known objects may be of a lost
            // future: list again and accept any version.
            tracing::warn!(kind = %T::kind(&()), "the API server went back in time: listing again");
            self.metrics.failed("rewound");
            self.newest = version;
            self.pending.push_back(Event::Rewound);
            return;
        }
        if !page.next.is_empty() {
            listing.next = Some(page.next);
            self.state = State::Listing(listing);
            return;
        }
        self.newest = version;
        self.quarantined.retain(|key| listing.present.contains(key));
        self.count_quarantined();
        self.pending.push_back(Event::Reset(listing.present));
        self.backoff.reset();
        self.state = State::Listed { version: page.resource_version };
    }

    /// Retries the page, with a smaller size after a timeout. An expired continue token restarts the list
    /// without pages, so that it cannot expire again.
    fn list_failed(&mut self, failure: WatchFailure) {
        let before = std::mem::replace(&mut self.state, State::new_list());
        let (State::Listing(listing) | State::Reading(Reading { listing, .. })) = before else {
            return self.fail(failure);
        };
        let listing = match &failure {
            WatchFailure::Gone => Listing { whole: listing.next.is_some(), ..Listing::default() },
            // Later pages show the same instant, whenever they are read.
            WatchFailure::Other(..) if listing.next.is_some() => listing,
            WatchFailure::Other(..) => Listing::default(),
        };
        self.state = State::Listing(listing);
        if matches!(failure, WatchFailure::Other("timeout" | "broken" | "connection", _)) {
            self.page = (self.page / 2).max(1);
        }
        self.fail(failure);
    }
}

fn too_long() -> WatchFailure {
    WatchFailure::Other("timeout", "list took too long".into())
}

fn malformed(error: ListError) -> WatchFailure {
    WatchFailure::Other("malformed", error.0.into())
}

fn read<T: DeserializeOwned + Resource>(item: ListItem<'_>) -> Decoded<T> {
    match item {
        ListItem::Object(raw) => decode(raw),
        ListItem::TooLarge => Decoded::Bad { identity: None, error: "larger than any object may be".into() },
    }
}

fn key<T: Resource<DynamicType = ()>>(decoded: &Decoded<T>) -> Option<ObjectKey> {
    match decoded {
        Decoded::Good(object) => Some(key_of(object)),
        Decoded::Bad { identity, .. } => identity.as_ref().map(Identity::key),
    }
}
