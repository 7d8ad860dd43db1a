//! Whether programs can find the endpoint by its name. While they cannot, they cannot report.
//!
//! The operator asks the cluster's DNS as its own pod does. A name that this process has never found says
//! nothing: an operator on its node's network or outside of the cluster does not use the cluster's DNS.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use andreas_runtime::clock;
use http::Uri;
use tokio_util::sync::CancellationToken;

use super::RejectedReports;

/// Between two questions.
const EVERY: Duration = Duration::from_secs(15);
/// How long an answer may take. Programs that wait longer are late, too.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Resolves the host of an address until `end`. An address without a host is not watched.
pub async fn watch_host_name(url: String, rejected_reports: Arc<RejectedReports>, end: CancellationToken) {
    let Ok(url) = url.parse::<Uri>() else { return };
    let Some(host) = url.host() else { return };
    let resolve = || async { tokio::net::lookup_host((host, 443)).await.map(drop) };
    watch(resolve, &rejected_reports, end).await;
}

async fn watch<L, F>(resolve: L, rejected_reports: &RejectedReports, end: CancellationToken)
where
    L: Fn() -> F,
    F: Future<Output = io::Result<()>>,
{
    let (mut known, mut lost) = (false, false);
    loop {
        match tokio::time::timeout(TIMEOUT, resolve()).await {
            Ok(Ok(())) => {
                if lost {
                    tracing::info!("the endpoint's name is found again");
                }
                (known, lost) = (true, false);
            }
            _ if known => {
                if !lost {
                    tracing::warn!(
                        "the endpoint's name is not found: programs cannot report, and none is blamed"
                    );
                }
                lost = true;
                rejected_reports.note_all(clock::now());
            }
            _ => {}
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = end.cancelled() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Whether reports count as lost after these answers; `None`: none comes.
    async fn noted(answers: &[Option<bool>]) -> bool {
        let rejected_reports = RejectedReports::default();
        let before = rejected_reports.last_possible_loss("u");
        let (asked, end) = (AtomicUsize::new(0), CancellationToken::new());
        let resolve = || {
            let answer = answers.get(asked.fetch_add(1, Ordering::Relaxed)).copied();
            if answer.is_none() {
                end.cancel();
            }
            async move {
                match answer {
                    None | Some(Some(true)) => Ok(()),
                    Some(Some(false)) => Err(io::Error::other("no such name")),
                    Some(None) => std::future::pending().await,
                }
            }
        };
        watch(resolve, &rejected_reports, end.clone()).await;
        assert_eq!(asked.load(Ordering::Relaxed), answers.len() + 1);
        rejected_reports.last_possible_loss("u") != before
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_blamed_for_reports_while_a_known_name_is_not_found() {
        assert!(noted(&[Some(true), Some(false)]).await);
        assert!(noted(&[Some(true), None, Some(true)]).await);
        assert!(!noted(&[Some(true), Some(true)]).await);
        // Never found: not the cluster's DNS.
        assert!(!noted(&[Some(false), None, Some(false)]).await);
    }
}
