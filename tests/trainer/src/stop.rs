//! SIGTERM and SIGINT as something a sleeping thread can wait for, without looking again and again.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Whether the program was asked to stop.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    asked: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Installs the handlers; with `deaf` they ignore the signals.
    pub fn on_signals(deaf: bool) -> std::io::Result<Arc<Self>> {
        let stop = Arc::new(Self::default());
        let mut signals = Signals::new([SIGTERM, SIGINT])?;
        let shared = Arc::clone(&stop);
        std::thread::Builder::new().stack_size(64 * 1024).spawn(move || {
            for _ in signals.forever() {
                if !deaf {
                    shared.ask();
                }
            }
        })?;
        Ok(stop)
    }

    pub fn ask(&self) {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    pub fn is_asked(&self) -> bool {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps; false when asked to stop before then.
    pub fn sleep_until(&self, due: Instant) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        while !*asked {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            asked = self.changed.wait_timeout(asked, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// As [`Stop::sleep_until`].
    pub fn sleep(&self, duration: Duration) -> bool {
        self.sleep_until(Instant::now() + duration)
    }
}
