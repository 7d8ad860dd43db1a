//! One container from image to end: pull, configure, start, watch, restart, stop.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Container;
use k8s_openapi::jiff::Timestamp;
use rustix::process::Signal;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::run::{PodContext, Program, StartProblem};
use super::status::{Kind, State, Terminated};
use crate::sandbox::Ended;

/// A program needs a moment to install its signal handlers; process 1 of a PID namespace loses what comes before.
const SIGNAL_HANDLER_DELAY: Duration = Duration::from_millis(250);
/// Between two attempts to start what is not configured yet.
const CONFIG_RETRY: Duration = Duration::from_secs(3);
/// A kubelet's back-off for restarts: 10 s doubling to 5 minutes.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));
/// The kubelet's limits for termination messages taken from logs.
const LOG_TAIL: (u64, usize) = (2048, 80);
const MESSAGE_LIMIT: u64 = 4096;

/// A change of a container's state.
#[derive(Debug)]
pub(crate) struct ContainerUpdate {
    pub index: usize,
    pub state: State,
    pub last: Option<Terminated>,
    pub restarts: u32,
    pub pid: Option<i32>,
    /// It runs and its probe says so.
    pub ready: bool,
    /// It will not start again.
    pub over: bool,
}

/// The worker's hold on a container.
pub(crate) struct Handle {
    /// When it must be dead; SIGTERM is sent when this is first set.
    pub stop: watch::Sender<Option<Instant>>,
    /// Its machine has lost its power.
    pub lose: mpsc::UnboundedSender<()>,
    task: JoinHandle<()>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts the container's task.
pub(crate) fn start(
    ctx: Arc<PodContext>,
    container: Container,
    index: usize,
    kind: Kind,
    news: mpsc::UnboundedSender<ContainerUpdate>,
) -> Handle {
    let (stop, stopping) = watch::channel(None);
    let (lose, lost) = mpsc::unbounded_channel();
    let restart = match (kind, ctx.pod.spec.restart_policy.as_str()) {
        (Kind::Sidecar, _) => Restart::Always,
        (_, "Never") => Restart::Never,
        (Kind::Init, _) | (_, "OnFailure") => Restart::OnFailure,
        _ => Restart::Always,
    };
    let task =
        Task { ctx, container, index, restart, news, stopping, lost, ready: false, restarts: 0, last: None };
    Handle { stop, lose, task: tokio::spawn(task.run()) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Restart {
    Never,
    OnFailure,
    Always,
}

struct Task {
    ctx: Arc<PodContext>,
    container: Container,
    index: usize,
    restart: Restart,
    news: mpsc::UnboundedSender<ContainerUpdate>,
    stopping: watch::Receiver<Option<Instant>>,
    lost: mpsc::UnboundedReceiver<()>,
    ready: bool,
    restarts: u32,
    last: Option<Terminated>,
}

impl Task {
    async fn run(mut self) {
        if !self.pull().await {
            return;
        }
        let mut backoff = BACKOFF.0;
        loop {
            let Some(end) = self.once().await else { return };
            let again = match self.restart {
                Restart::Never => false,
                Restart::OnFailure => end.exit_code != 0,
                Restart::Always => true,
            } && self.stopping.borrow().is_none();
            if !again {
                return self.tell(State::Terminated(end), None, true);
            }
            self.last = Some(end);
            let name = &self.container.name;
            let text = format!("back-off {}s restarting failed container={name}", backoff.as_secs());
            self.tell(State::waiting("CrashLoopBackOff", text), None, false);
            // The first restart is at once.
            let wait = if self.restarts == 0 { Duration::ZERO } else { backoff };
            if !self.pause(wait).await {
                let end = self.last.clone();
                return end.map_or((), |end| self.tell(State::Terminated(end), None, true));
            }
            if self.restarts > 0 {
                backoff = (backoff * 2).min(BACKOFF.1);
            }
            self.restarts += 1;
        }
    }

    fn tell(&self, state: State, pid: Option<i32>, over: bool) {
        let (last, restarts) = (self.last.clone(), self.restarts);
        let ready = self.ready && matches!(state, State::Running { .. });
        let _ =
            self.news.send(ContainerUpdate { index: self.index, state, last, restarts, pid, ready, over });
    }

    /// A Normal event, where processes run; simulated pods are too many for that.
    fn record_event(&self, reason: &str, message: &str) {
        if self.ctx.shared.sandbox.is_some() {
            self.ctx.shared.event(&self.ctx.pod, "Normal", reason, message);
        }
    }

    /// A waiting container whose pod is to end: no state of its own to report.
    fn tell_never_started(&self, state: State) {
        self.tell(state, None, true);
    }

    /// False when the pod is to end.
    async fn pause(&mut self, duration: Duration) -> bool {
        let deadline = Instant::now() + duration;
        loop {
            if self.stopping.borrow().is_some() {
                return false;
            }
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => return true,
                changed = self.stopping.changed() => if changed.is_err() { return false },
            }
        }
    }

    /// "Pulls" the image; false when the pod ended meanwhile.
    async fn pull(&mut self) -> bool {
        let image = self.container.image.clone().unwrap_or_default();
        let Some((reason, message)) = image_problem(&image) else { return true };
        let state = State::waiting(reason, message.clone());
        self.ctx.shared.event(&self.ctx.pod, "Warning", "Failed", &message);
        self.tell(state.clone(), None, false);
        while self.pause(BACKOFF.1).await {}
        self.tell_never_started(state);
        false
    }

    /// Starts the container and waits for its end; none when the pod ended before it could start.
    async fn once(&mut self) -> Option<Terminated> {
        let mut reported = None;
        if self.restarts == 0 {
            // What an earlier pod of this name has said is not this one's last words.
            let _ = std::fs::remove_file(self.ctx.log(&self.container.name));
        }
        let mut program = loop {
            match Program::start(&self.ctx, &self.container).await {
                Ok(program) => break program,
                Err(StartProblem::Config(problem)) => {
                    let state = State::waiting("CreateContainerConfigError", problem.0.clone());
                    if reported.as_ref() != Some(&state) {
                        self.ctx.shared.event(
                            &self.ctx.pod,
                            "Warning",
                            "Failed",
                            &format!("Error: {problem}"),
                        );
                        self.tell(state.clone(), None, false);
                        reported = Some(state.clone());
                    }
                    if !self.pause(CONFIG_RETRY).await {
                        self.tell_never_started(state);
                        return None;
                    }
                    // What broke meanwhile, a machine that lost its power among it, met no program.
                    while self.lost.try_recv().is_ok() {}
                }
                Err(problem) => {
                    let text = format!("failed to create containerd task: {problem}");
                    self.ctx.shared.event(&self.ctx.pod, "Warning", "Failed", &format!("Error: {text}"));
                    return Some(self.start_error(text));
                }
            }
        };
        let since = Timestamp::now();
        let container_id = format!(
            "pretend://{}",
            crate::devices::uuid(&[self.ctx.pod.uid(), &self.container.name, &self.restarts.to_string(),])
        );
        let running = State::Running { since, container_id: container_id.clone() };
        self.record_event("Started", &format!("Started container {}", self.container.name));
        let (ended, lost) = self.watch(&mut program, &running).await;
        let (exit_code, reason) = match ended.exit_code() {
            _ if lost => (255, "Unknown"),
            0 => (0, "Completed"),
            code => (code, "Error"),
        };
        Some(Terminated {
            exit_code,
            reason: reason.to_owned(),
            message: self.message(exit_code),
            started: Some(since),
            // What goes with the machine's power is found when it is back.
            finished: (!lost).then(Timestamp::now),
            container_id,
        })
    }

    /// containerd's answer to a program that does not start.
    fn start_error(&self, message: String) -> Terminated {
        Terminated {
            exit_code: 128,
            reason: "StartError".to_owned(),
            message,
            started: Timestamp::from_second(0).ok(),
            finished: Some(Timestamp::now()),
            container_id: String::new(),
        }
    }

    /// Waits for the end; stops the program when asked to. Whether it was lost with its machine.
    async fn watch(&mut self, program: &mut Program, running: &State) -> (Ended, bool) {
        let started = Instant::now();
        let (mut lost, mut warned, mut killed) = (false, false, false);
        let (tell, mut probed) = mpsc::unbounded_channel();
        let probing = program.probing(&self.ctx, &self.container);
        self.ready = probing.is_none();
        self.tell(running.clone(), program.pid(), false);
        let _probes = AbortOnDrop(probing.map(|probing| tokio::spawn(probing.run(tell))));
        loop {
            let deadline = *self.stopping.borrow_and_update();
            let warn_at = deadline.filter(|_| !warned).map(|_| started + SIGNAL_HANDLER_DELAY);
            let kill_at = deadline.filter(|_| !killed);
            let at = |when: Option<Instant>| async move {
                match when {
                    Some(when) => tokio::time::sleep_until(when).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ended = program.ended() => return (ended, lost),
                () = at(kill_at) => {
                    killed = true;
                    program.signal(Signal::KILL).await;
                }
                () = at(warn_at) => {
                    warned = true;
                    self.record_event("Killing", &format!("Stopping container {}", self.container.name));
                    program.signal(Signal::TERM).await;
                }
                Ok(()) = self.stopping.changed() => {}
                Some(ready) = probed.recv() => {
                    self.ready = ready;
                    self.tell(running.clone(), program.pid(), false);
                }
                Some(()) = self.lost.recv() => {
                    (lost, killed) = (true, true);
                    program.signal(Signal::KILL).await;
                }
            }
        }
    }

    /// The termination message: its file, else with `FallbackToLogsOnError` the log's last lines.
    fn message(&self, exit_code: i32) -> String {
        let file = tail(&self.ctx.termination_log(&self.container.name), MESSAGE_LIMIT, usize::MAX);
        let fall_back = self.container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
        if file.is_empty() && fall_back && exit_code != 0 {
            return tail(&self.ctx.log(&self.container.name), LOG_TAIL.0, LOG_TAIL.1);
        }
        file
    }
}

/// A task that has no reason to outlive its owner.
struct AbortOnDrop(Option<JoinHandle<()>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// The last bytes of a file, at most so many lines.
fn tail(path: &Path, bytes: u64, lines: usize) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
        let mut buffer = Vec::new();
        file.take(bytes).read_to_end(&mut buffer)?;
        Ok(buffer)
    };
    let text = String::from_utf8_lossy(&read().unwrap_or_default()).into_owned();
    let all: Vec<&str> = text.split_inclusive('\n').collect();
    all[all.len().saturating_sub(lines)..].concat()
}

/// Images that cannot be had: names that are none, and by convention everything of the repository `missing`.
fn image_problem(image: &str) -> Option<(&'static str, String)> {
    let name = image.split(['@']).next().unwrap_or_default();
    let (path, _tag) = match name.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, tag),
        _ => (name, ""),
    };
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-/:".contains(c);
    if path.is_empty() || !path.chars().all(allowed) || path.ends_with('/') {
        let text = format!(
            "Failed to apply default image tag \"{image}\": couldn't parse image name \"{image}\": invalid reference format"
        );
        return Some(("InvalidImageName", text));
    }
    if path.split('/').any(|part| part == "missing") {
        let text = format!(
            "failed to pull and unpack image \"{image}\": failed to resolve reference \"{image}\": {image}: not found"
        );
        return Some(("ErrImagePull", text));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_that_cannot_be_had() {
        assert_eq!(image_problem("andreas.dev/trainer:dev"), None);
        assert_eq!(image_problem("registry:5000/a/b@sha256:00"), None);
        assert_eq!(image_problem("missing/trainer:1").unwrap().0, "ErrImagePull");
        assert_eq!(image_problem("Not An Image").unwrap().0, "InvalidImageName");
    }

    #[test]
    fn the_tail_is_cut_by_bytes_and_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, (0..200).map(|i| format!("line {i}\n")).collect::<String>()).unwrap();
        let text = tail(&path, 2048, 80);
        assert_eq!((text.lines().count(), text.lines().last()), (80, Some("line 199")));
        assert_eq!(tail(&path, 9, 80), "line 199\n");
        assert_eq!(tail(&dir.path().join("none"), 9, 80), "");
    }
}
