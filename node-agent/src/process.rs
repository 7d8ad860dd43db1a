//! Common part of both processes after confinement: NVML, a single-threaded runtime, shutdown.

use std::path::Path;
use std::sync::Arc;

use andreas_runtime::shutdown;
use tokio_util::sync::CancellationToken;

use crate::gpu::Library;
use crate::gpu::nvml::NvmlLibrary;

/// Runs `work` on one thread until it ends, with NVML from `library` and a token that SIGTERM and SIGINT
/// cancel. Confine the process before: capabilities and namespaces are per thread.
///
/// # Errors
/// Errors of `work`, or when the runtime or a signal handler cannot be created.
pub fn run<F>(
    library: &Path,
    work: impl FnOnce(Arc<dyn Library>, CancellationToken) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let shutdown = shutdown::on_signals()?;
        work(Arc::new(NvmlLibrary::new(library)), shutdown).await
    });
    // A thread that hangs in the driver must not delay the exit.
    runtime.shutdown_background();
    ended
}
