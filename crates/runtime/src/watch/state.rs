//! Where a watcher is between two calls, and why it repeats one.

use std::collections::HashSet;
use std::pin::Pin;

use futures::io::AsyncBufRead;
use tokio::time::Instant;

use super::ObjectKey;
use super::list_splitter::{Lines, ListSplitter};
use crate::kubeconfig::innermost;

/// An answer read while it arrives.
pub(super) type Body = Pin<Box<dyn AsyncBufRead + Send>>;

/// A list between two pages.
#[derive(Default)]
pub(super) struct Listing {
    /// Continue token of the next page; `None` for the first.
    pub(super) next: Option<String>,
    /// Whether to list without pages.
    pub(super) whole: bool,
    /// Keys of the pages so far.
    pub(super) present: HashSet<ObjectKey>,
}

/// A page that is arriving.
pub(super) struct Reading {
    pub(super) listing: Listing,
    pub(super) body: Body,
    pub(super) splitter: ListSplitter,
    /// Deadline of the page.
    pub(super) until: Instant,
}

/// What a watcher does next.
pub(super) enum State {
    /// The next page is to be requested.
    Listing(Listing),
    /// A page is arriving.
    Reading(Reading),
    /// A watch from this version is to be opened.
    Listed { version: String },
    /// A watch from this version ended without an event or a bookmark.
    Quiet { version: String },
    /// A watch is open.
    Watching { version: String, body: Body, lines: Lines, opened: Instant, events: u64 },
}

impl State {
    pub(super) fn new_list() -> Self {
        Self::Listing(Listing::default())
    }
}

/// The reason for retrying a list or a watch.
pub(super) enum WatchFailure {
    /// The version is too old: list again.
    Gone,
    /// Any other error, with a word for the metric.
    Other(&'static str, String),
}

impl WatchFailure {
    pub(super) fn from_error(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 410 => Self::Gone,
            // The database was restored from a backup; our version is in its future.
            kube::Error::Api(status) if status.message.contains("Too large resource version") => Self::Gone,
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
            other => Self::Other("connection", innermost(other)),
        }
    }
}
