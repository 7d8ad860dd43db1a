//! Ending in order: one signal asks, a second one insists.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit status after a second signal: 128 + SIGTERM, what a shell reports for a killed process.
const INSISTED: i32 = 143;

/// Returns a token that SIGTERM or SIGINT cancels; a second signal of either kind ends the process at once with status 143.
///
/// Both handlers are installed before this returns, so a signal right after start is not lost (a program started in the
/// background by a shell ignores SIGINT by default; the handler undoes that).
///
/// # Errors
/// When a handler cannot be installed.
pub fn on_signals() -> std::io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let asked = token.clone();
    tokio::spawn(async move {
        let name = either(&mut terminate, &mut interrupt).await;
        tracing::info!(signal = name, "ending: finishing what is in flight");
        asked.cancel();
        let name = either(&mut terminate, &mut interrupt).await;
        tracing::warn!(signal = name, "second signal: ending at once");
        std::process::exit(INSISTED);
    });
    Ok(token)
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
