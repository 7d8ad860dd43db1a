//! Whether this process reaches the driver at all.
//!
//! A container can lose its devices: `systemctl daemon-reload` makes systemd write its device rules anew, without GPUs that NVIDIA's hook
//! had added. NVML then says "Unknown Error" until the container is started again. A driver that is exchanged does the same with
//! other codes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::worker::CALL_TIMEOUT;
use super::{GpuError, Library, Worker};

/// Longest interval of checks.
const EVERY: Duration = Duration::from_secs(30);

/// Opens NVML, and returns once no GPU could be reached for `patience`. A driver that hangs is there.
///
/// # Errors
/// When no thread can be started.
pub async fn lost(library: Arc<dyn Library>, patience: Duration) -> std::io::Result<GpuError> {
    let worker = Worker::start("gpu-reach", CALL_TIMEOUT, Box::new(move || Ok(Arc::clone(&library))))?;
    let every = (patience / 10).clamp(Duration::from_millis(100), EVERY);
    let mut since: Option<Instant> = None;
    loop {
        match worker.call(|library| reach(library.as_ref())).await {
            Err(error) if error.is_unreachable() => {
                if since.is_none() {
                    tracing::warn!(%error, "no GPU can be reached");
                }
                if since.get_or_insert_with(Instant::now).elapsed() >= patience {
                    return Ok(error);
                }
            }
            _ => since = None,
        }
        tokio::time::sleep(every).await;
    }
}

/// Opens the GPUs until one answers. A node without any is reached.
fn reach(library: &dyn Library) -> Result<(), GpuError> {
    let mut unreachable = None;
    for uuid in library.uuids()? {
        match library.open(&uuid) {
            Err(error) if error.is_unreachable() => unreachable = Some(error),
            _ => return Ok(()),
        }
    }
    unreachable.map_or(Ok(()), Err)
}
