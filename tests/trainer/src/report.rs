//! Progress, posted as Kubeflow Trainer's callbacks post it: 0 at the begin (also of a resumed run), the share of steps
//! in between, 100 at the end of the program (also an early one). A failure to report never stops the training.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::settings::ReportTo;

/// Longest one post may take.
const POST_LIMIT: Duration = Duration::from_secs(5);
/// Tries for the last post.
const LAST_TRIES: u32 = 3;

/// Where the training stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrainingProgress {
    pub step: u64,
    pub total_steps: u64,
    pub epoch: f64,
    /// Percent to claim instead of the share of steps, at begin and end.
    pub claimed: Option<u32>,
}

/// The latest report wins; a thread posts it no more often than allowed.
pub(crate) struct Reporter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    began: Instant,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    latest: Option<Value>,
    over: bool,
}

impl Reporter {
    /// Starts the posting thread; without an address nothing is ever posted.
    pub fn start(to: Option<ReportTo>) -> Self {
        let shared = Arc::new(Shared::default());
        let thread = to.and_then(|to| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().stack_size(512 * 1024).spawn(move || post_all(&shared, &to)).ok()
        });
        Self { shared, thread, began: Instant::now() }
    }

    pub fn report(&self, standing: TrainingProgress) {
        if self.thread.is_none() {
            return;
        }
        let body = body(standing, self.began.elapsed());
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).latest = Some(body);
        self.shared.changed.notify_one();
    }

    /// Posts what is left and ends the thread.
    pub fn finish(mut self) {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).over = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The wire format of KEP-2779. The remaining time is what the callbacks compute: wrong after a resume.
fn body(standing: TrainingProgress, elapsed: Duration) -> Value {
    let share = standing.step as f64 / standing.total_steps.max(1) as f64;
    let percent = standing.claimed.unwrap_or((share * 100.0) as u32).min(100);
    let remaining =
        (share > 0.0).then(|| (elapsed.as_secs_f64() * (1.0 - share).max(0.0) / share).round() as u64);
    let metric = |name: &str, value: String| json!({"name": name, "value": value});
    let mut body = json!({"trainerStatus": {
        "progressPercentage": percent,
        "estimatedRemainingSeconds": remaining,
        "metrics": [
            metric("current_step", standing.step.to_string()),
            metric("total_steps", standing.total_steps.to_string()),
            metric("current_epoch", format!("{:.3}", standing.epoch)),
            metric("loss", format!("{:.4}", 2.0 / (1.0 + standing.epoch))),
        ],
        "lastUpdatedTime": jiff::Timestamp::now().to_string(),
    }});
    if standing.claimed == Some(0) {
        // The callbacks' first post is a plain 0, whatever was done before.
        body["trainerStatus"]["metrics"] = json!([]);
    }
    body
}

fn post_all(shared: &Shared, to: &ReportTo) {
    let mut logged = String::new();
    let mut last = None::<Instant>;
    loop {
        let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (body, over) = loop {
            let wait = last.map_or(Duration::ZERO, |last| to.every.saturating_sub(last.elapsed()));
            if state.over || (state.latest.is_some() && wait.is_zero()) {
                break (state.latest.take(), state.over);
            }
            state = if state.latest.is_some() {
                shared.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
            } else {
                shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            };
        };
        drop(state);
        if let Some(body) = body {
            for attempt in 1..=if over { LAST_TRIES } else { 1 } {
                match post(to, &body) {
                    Ok(()) => break,
                    Err(error) => {
                        if logged != error {
                            eprintln!("progress not reported: {error}");
                            logged = error;
                        }
                        if attempt < LAST_TRIES && over {
                            std::thread::sleep(Duration::from_millis(300));
                        }
                    }
                }
            }
            last = Some(Instant::now());
        }
        if over {
            return;
        }
    }
}

/// Token and CA are read at every post: the kubelet renews the one, an administrator the other.
fn post(to: &ReportTo, body: &Value) -> Result<(), String> {
    use ureq::tls::{Certificate, RootCerts, TlsConfig};
    let mut config =
        ureq::Agent::config_builder().timeout_global(Some(POST_LIMIT)).http_status_as_error(true);
    if let Some(path) = &to.ca_file {
        let pem = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let certificates: Vec<Certificate<'static>> = ureq::tls::parse_pem(&pem)
            .filter_map(|item| match item {
                Ok(ureq::tls::PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            })
            .collect();
        let roots = RootCerts::new_with_certs(&certificates);
        config = config.tls_config(TlsConfig::builder().root_certs(roots).build());
    }
    let agent = ureq::Agent::new_with_config(config.build());
    let mut request = agent.post(&to.url).header("content-type", "application/json");
    if let Some(path) = &to.token_file {
        let token = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        request = request.header("authorization", format!("Bearer {}", token.trim()));
    }
    request.send(body.to_string()).map(drop).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_is_that_of_the_protocol() {
        let standing = TrainingProgress { step: 25, total_steps: 100, epoch: 0.5, claimed: None };
        let status = &body(standing, Duration::from_secs(10))["trainerStatus"];
        assert_eq!(status["progressPercentage"], 25);
        assert_eq!(status["estimatedRemainingSeconds"], 30);
        assert_eq!(status["metrics"][0], json!({"name": "current_step", "value": "25"}));
        let begin = TrainingProgress { claimed: Some(0), ..standing };
        assert_eq!(body(begin, Duration::ZERO)["trainerStatus"]["progressPercentage"], 0, "also on resume");
    }
}
