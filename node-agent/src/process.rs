//! A process of the agent once it is confined: NVML, one thread, an orderly end.

use std::path::Path;
use std::sync::Arc;

use andreas_runtime::shutdown;
use tokio_util::sync::CancellationToken;

use crate::gpu::Library;
use crate::gpu::nvml::NvmlLibrary;

/// Runs `work` on one thread until it ends, with NVML loaded from `library` and a token that SIGTERM and SIGINT cancel. What is
/// confined is confined before: capabilities and the network belong to threads.
///
/// # Errors
/// Those of `work`; or no runtime or signal handler can be had.
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
    // A thread that hangs in the driver must not keep the process.
    runtime.shutdown_background();
    ended
}
