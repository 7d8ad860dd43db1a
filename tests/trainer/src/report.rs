//! Progress reports in Kubeflow Trainer's wire format (KEP-2779), as a training library's callback sends them: 0 at the
//! beginning, at most so often, 100 at the end. A report that fails never stops the training.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::settings::Settings;

/// How long one report may take.
const LIMIT: Duration = Duration::from_secs(3);

/// How far the run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Steps done.
    pub step: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// Epochs done.
    pub epoch: f64,
    /// Seconds to the end.
    pub remaining_s: f64,
}

/// Sends reports from a thread of its own.
pub struct Reporter {
    sender: Option<Sender<Progress>>,
    thread: Option<JoinHandle<()>>,
}

impl Reporter {
    /// Starts, or does nothing where there is no address or no reports are wanted.
    pub fn start(settings: &Settings) -> Self {
        let none = Self { sender: None, thread: None };
        if settings.no_progress.is_some() || settings.rank != 0 {
            return none;
        }
        let Some(url) = settings.report_url.clone() else { return none };
        let Some(post) = Post::new(url, settings.report_ca.as_deref(), settings.report_token.clone()) else {
            return none;
        };
        let (sender, receiver) = channel();
        let every = Duration::from_secs_f64(settings.report_seconds.clamp(0.05, 3600.0));
        let thread = std::thread::spawn(move || run(&post, &receiver, every));
        Self { sender: Some(sender), thread: Some(thread) }
    }

    /// Tells how far the run is; the last word counts.
    pub fn tell(&self, progress: Progress) {
        if let Some(sender) = &self.sender {
            // The thread ends only with self.
            let _ = sender.send(progress);
        }
    }

    /// Sends the last report and ends.
    pub fn finish(mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("the reporter ended badly");
        }
    }
}

fn run(post: &Post, receiver: &Receiver<Progress>, every: Duration) {
    let mut waiting: Option<Progress> = None;
    let mut sent: Option<Instant> = None;
    loop {
        let wait = match (waiting, sent) {
            (Some(_), Some(at)) => every.saturating_sub(at.elapsed()),
            (Some(_), None) => Duration::ZERO,
            (None, _) => Duration::from_secs(3600),
        };
        match receiver.recv_timeout(wait) {
            Ok(progress) => waiting = Some(progress),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(progress) = waiting.take() {
                    post.send(progress);
                    sent = Some(Instant::now());
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                if let Some(progress) = waiting {
                    post.send(progress);
                }
                return;
            }
        }
    }
}

struct Post {
    agent: ureq::Agent,
    url: String,
    token: Option<PathBuf>,
}

impl Post {
    fn new(url: String, ca: Option<&Path>, token: Option<PathBuf>) -> Option<Self> {
        let mut tls = TlsConfig::builder();
        if let Some(path) = ca {
            let pem = match std::fs::read(path) {
                Ok(pem) => pem,
                Err(error) => {
                    eprintln!("no reports: cannot read the CA {}: {error}", path.display());
                    return None;
                }
            };
            let roots: Vec<Certificate<'static>> = parse_pem(&pem)
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(certificate),
                    _ => None,
                })
                .collect();
            tls = tls.root_certs(RootCerts::new_with_certs(&roots));
        }
        let config =
            ureq::Agent::config_builder().tls_config(tls.build()).timeout_global(Some(LIMIT)).build();
        Some(Self { agent: config.into(), url, token })
    }

    fn send(&self, progress: Progress) {
        let Progress { step, steps, epoch, remaining_s } = progress;
        let percent = (step * 100).checked_div(steps).unwrap_or(100).min(100);
        let body = json!({"trainerStatus": {
            "progressPercentage": percent,
            "estimatedRemainingSeconds": remaining_s.round().max(0.0) as u64,
            "metrics": [
                {"name": "current_step", "value": step.to_string()},
                {"name": "total_steps", "value": steps.to_string()},
                {"name": "current_epoch", "value": format!("{epoch:.4}")},
            ],
            "lastUpdatedTime": jiff::Timestamp::now().to_string(),
        }});
        let mut request = self.agent.post(&self.url);
        // The kubelet renews the token's file.
        if let Some(token) = self.token.as_ref().and_then(|t| std::fs::read_to_string(t).ok()) {
            request = request.header("Authorization", format!("Bearer {}", token.trim()));
        }
        if let Err(error) = request.header("Content-Type", "application/json").send(body.to_string()) {
            eprintln!("report at {percent}% failed: {error}");
        }
    }
}
