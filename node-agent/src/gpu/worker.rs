//! One thread that owns one thing whose calls may hang: a GPU's handle, or the library.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::GpuError;

/// How long a call to a driver may take before it is given up.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Calls that may wait behind the one that runs.
const MAILBOX: usize = 4;

/// Opens the thing; called on the thread, and again after an error that [ends the handle](GpuError::ends_handle).
pub type Opener<R> = Box<dyn FnMut() -> Result<R, GpuError> + Send>;

type Job<R> = Box<dyn FnOnce(Result<&mut R, GpuError>) -> bool + Send>;

/// A thread with a bounded mailbox. Dropping it ends the thread once its present call is over.
pub struct Worker<R> {
    mailbox: SyncSender<Job<R>>,
    /// When the call that runs now began.
    running: Arc<Mutex<Option<Instant>>>,
    timeout: Duration,
}

impl<R: Send + 'static> Worker<R> {
    /// Starts a thread called `name` (the kernel keeps 15 bytes of it).
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(name: &str, timeout: Duration, opener: Opener<R>) -> std::io::Result<Self> {
        let (mailbox, jobs) = sync_channel(MAILBOX);
        let running = Arc::new(Mutex::new(None));
        let shown = Arc::clone(&running);
        // The stack is small on purpose: a node may have many GPUs, and NVML's calls are shallow.
        std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(256 * 1024)
            .spawn(move || serve(&jobs, opener, &shown))?;
        Ok(Self { mailbox, running, timeout })
    }

    /// For how long the present call has been running.
    #[must_use]
    pub fn busy_for(&self) -> Option<Duration> {
        self.running.lock().map(|since| since.elapsed())
    }

    /// Runs `work` on the thread.
    ///
    /// # Errors
    /// What `work` says, or why the thing cannot be opened; [`GpuError::Hung`] when it takes too long, and at once while an
    /// earlier call hangs. A call given up may still be carried out later: whoever sets something then sets it again.
    pub async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut R) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        if self.busy_for().is_some_and(|busy| busy > self.timeout) {
            return Err(GpuError::Hung);
        }
        let (reply, answer) = oneshot::channel();
        let job: Job<R> = Box::new(move |handle| {
            let result = handle.and_then(work);
            let keep = !result.as_ref().is_err_and(GpuError::ends_handle);
            // Nobody waits any more for the answer of a call that was given up.
            let _ = reply.send(result);
            keep
        });
        self.mailbox.try_send(job).map_err(|_| GpuError::Hung)?;
        match tokio::time::timeout(self.timeout, answer).await {
            Ok(Ok(result)) => result,
            // The thread died: a panic in a driver's wrapper.
            Ok(Err(_)) => Err(GpuError::Other("the GPU's thread has ended".into())),
            Err(_) => Err(GpuError::Hung),
        }
    }
}

fn serve<R>(jobs: &Receiver<Job<R>>, mut opener: Opener<R>, running: &Mutex<Option<Instant>>) {
    let mut handle = None;
    for job in jobs {
        *running.lock() = Some(Instant::now());
        let opened = match handle.as_mut() {
            Some(handle) => Ok(handle),
            None => opener().map(|new| handle.insert(new)),
        };
        if !job(opened) {
            handle = None;
        }
        *running.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_hung_call_is_given_up_and_later_calls_do_not_wait() {
        let (release, hang) = sync_channel::<()>(0);
        let timeout = Duration::from_secs(1);
        let worker: Worker<u32> = Worker::start("test", timeout, Box::new(|| Ok(7))).unwrap();
        assert_eq!(worker.call(|number| Ok(*number)).await, Ok(7));
        let stuck = worker.call(move |_| hang.recv().map_err(|_| GpuError::Lost));
        assert_eq!(stuck.await, Err(GpuError::Hung));
        while worker.busy_for().is_none_or(|busy| busy <= timeout) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let since = Instant::now();
        assert_eq!(worker.call(|number| Ok(*number)).await, Err(GpuError::Hung));
        assert!(since.elapsed() < timeout, "refused at once");
        release.send(()).unwrap();
        while worker.busy_for().is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(worker.call(|number| Ok(*number)).await, Ok(7));
    }

    #[tokio::test]
    async fn a_handle_that_ended_is_opened_again() {
        let mut opened = 0;
        let opener = move || {
            opened += 1;
            if opened == 2 { Err(GpuError::NoDriver("gone".into())) } else { Ok(opened) }
        };
        let worker = Worker::start("test", CALL_TIMEOUT, Box::new(opener)).unwrap();
        assert_eq!(worker.call(|_| Err::<(), _>(GpuError::Lost)).await, Err(GpuError::Lost));
        assert!(matches!(worker.call(|count| Ok(*count)).await, Err(GpuError::NoDriver(_))));
        assert_eq!(worker.call(|count| Ok(*count)).await, Ok(3));
    }
}
