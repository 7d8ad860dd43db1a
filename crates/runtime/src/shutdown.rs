//! Shutdown by signals: the first asks for it, the second forces it.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit status after a second signal: 128 + SIGTERM, what a shell reports for a killed process.
const INSISTED: i32 = 143;

/// Returns a token that SIGTERM or SIGINT cancels. A second signal ends the process at once with status 143.
///
/// Both handlers are installed before this returns, so an early signal is not lost. A shell starts background
/// programs with SIGINT ignored; the handler undoes that.
///
/// # Errors
/// When a handler cannot be installed.
pub fn on_signals() -> std::io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let asked = token.clone();
    tokio::spawn(async move {
        let name = either_signal(&mut terminate, &mut interrupt).await;
        tracing::info!(signal = name, "ending: finishing what is in flight");
        asked.cancel();
        let name = either_signal(&mut terminate, &mut interrupt).await;
        tracing::warn!(signal = name, "second signal: ending at once");
        std::process::exit(INSISTED);
    });
    Ok(token)
}

async fn either_signal(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
