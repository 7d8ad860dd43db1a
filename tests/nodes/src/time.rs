//! Times as Kubernetes writes them.

use k8s_openapi::jiff::Timestamp;

/// Times in Kubernetes' `Time` have whole seconds.
pub(crate) fn whole_seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}
