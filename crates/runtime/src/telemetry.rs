//! Logging: `tracing` to standard error, as text or JSON.

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One readable line per event.
    Text,
    /// One JSON object per event, fields flattened. Tenant-controlled text is escaped by the encoder.
    Json,
}

/// Flags for logging; flatten them into a server's own flags.
#[derive(Clone, Debug, Args)]
pub struct TelemetryArgs {
    /// Log filter in the syntax of tracing's EnvFilter.
    #[arg(
        id = "log",
        long = "log",
        env = "ANDREAS_LOG",
        default_value = "info,kube=warn",
        value_name = "FILTER"
    )]
    pub filter: String,
    /// Format of log lines.
    #[arg(id = "log-format", long = "log-format", env = "ANDREAS_LOG_FORMAT", value_enum, default_value_t = LogFormat::Json)]
    pub format: LogFormat,
}

/// Errors when logging is set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is not an EnvFilter.
    #[error("log filter {filter:?} is not valid")]
    Filter {
        /// The given filter.
        filter: String,
        /// The parser's error.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Another subscriber is already installed in the process.
    #[error("logging is already set up")]
    AlreadySet(#[source] tracing_subscriber::util::TryInitError),
}

/// Starts logging for the whole process. Call it once, first in `main`.
///
/// # Errors
/// When the filter does not parse or a subscriber is already installed.
pub fn init(args: &TelemetryArgs) -> Result<(), TelemetryError> {
    use std::io::IsTerminal as _;

    use tracing_subscriber::util::SubscriberInitExt;
    let filter = EnvFilter::try_new(&args.filter)
        .map_err(|source| TelemetryError::Filter { filter: args.filter.clone(), source })?;
    let base = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match args.format {
        LogFormat::Text => base.finish().try_init(),
        LogFormat::Json => base.json().flatten_event(true).with_current_span(false).finish().try_init(),
    }
    .map_err(TelemetryError::AlreadySet)
}
