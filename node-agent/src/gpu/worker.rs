//! A thread that owns a resource with blocking calls: a GPU handle or the library.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::GpuError;

/// Timeout of a driver call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Capacity of the mailbox: calls that may wait behind the running one.
const MAILBOX: usize = 4;

/// Opens the resource. Called on the thread, and again after an error that [ends the
/// handle](GpuError::ends_handle).
pub type Opener<R> = Box<dyn FnMut() -> Result<R, GpuError> + Send>;

type Job<R> = Box<dyn FnOnce(Result<&mut R, GpuError>) -> bool + Send>;

/// A thread with a bounded mailbox. When dropped, the thread ends after its current call.
pub struct Worker<R> {
    mailbox: SyncSender<Job<R>>,
    /// Start of the current call.
    running: Arc<Mutex<Option<Instant>>>,
    timeout: Duration,
}

impl<R: Send + 'static> Worker<R> {
    /// Starts a thread called `name` (the kernel keeps 15 bytes of it).
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(name: &str, timeout: Duration, opener: Opener<R>) -> std::io::Result<Self> {
        let (mailbox, jobs) = sync_channel(MAILBOX);
        let running = Arc::new(Mutex::new(None));
        let shown = Arc::clone(&running);
        // Small stack on purpose: a node may have many GPUs, and NVML's calls are shallow.
        std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(256 * 1024)
            .spawn(move || serve(&jobs, opener, &shown))?;
        Ok(Self { mailbox, running, timeout })
    }

    /// For how long the current call has been running.
    #[must_use]
    pub fn busy_for(&self) -> Option<Duration> {
        self.running.lock().map(|since| since.elapsed())
    }

    /// Runs `work` on the thread.
    ///
    /// # Errors
    /// Errors of `work`, or of opening the resource. [`GpuError::Hung`] on a timeout, and at once while an
    /// earlier call hangs. A timed-out call may still take effect later, so callers that set something must
    /// set it again.
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
            // The caller gave up; its result is dropped.
            let _ = reply.send(result);
            keep
        });
        self.mailbox.try_send(job).map_err(|_| GpuError::Hung)?;
        match tokio::time::timeout(self.timeout, answer).await {
            Ok(Ok(result)) => result,
            // The thread died: a panic in the driver's wrapper.
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

    async fn until(holds: impl Fn() -> bool) {
        let held = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), held).await.expect("it comes to hold");
    }

    #[tokio::test]
    async fn a_hung_call_is_given_up_and_later_calls_do_not_wait() {
        let (release, hang) = sync_channel::<()>(0);
        let timeout = Duration::from_secs(1);
        let worker: Worker<u32> = Worker::start("test", timeout, Box::new(|| Ok(7))).unwrap();
        assert_eq!(worker.call(|number| Ok(*number)).await, Ok(7));
        let stuck = worker.call(move |_| hang.recv().map_err(|_| GpuError::Lost));
        assert_eq!(stuck.await, Err(GpuError::Hung));
        until(|| worker.busy_for().is_some_and(|busy| busy > timeout)).await;
        let since = Instant::now();
        assert_eq!(worker.call(|number| Ok(*number)).await, Err(GpuError::Hung));
        assert!(since.elapsed() < timeout, "refused at once");
        release.send(()).unwrap();
        until(|| worker.busy_for().is_none()).await;
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
