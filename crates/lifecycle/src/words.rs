//! What programs, container runtimes and kubelets say, and whose failure it tells of.

use andreas_api::slim::{SlimPod, SlimTerminated};

/// containerd reports this pair for a container whose process it lost, for example after a reboot. The node's
/// new boot ID may be seen later.
pub(super) fn lost_by_runtime(t: &SlimTerminated) -> bool {
    t.reason == "Unknown" && t.exit_code == 255
}

/// A container that its node could not start for what is broken there: the driver, or the runtime's hook or CDI specification for its GPUs.
/// A program that is not in the image is its user's.
pub(super) fn not_started_by_its_node(pod: &SlimPod) -> Option<&SlimTerminated> {
    const WORDS: [&str; 5] = [
        "nvidia-container-cli",
        "nvidia-container-runtime",
        "error running hook",
        "prestart hook",
        "CDI device",
    ];
    let all = pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
    let mut ended = all.filter_map(|s| s.state.terminated.as_ref());
    ended.find(|t| t.reason == "StartError" && WORDS.iter().any(|words| t.message.contains(words)))
}

/// CUDA messages for a failed GPU (uncorrectable ECC error, XID 79, 74).
pub(super) fn mentions_gpu_fault(message: &str) -> bool {
    const WORDS: [&str; 5] = [
        "uncorrectable ECC error",
        "fallen off the bus",
        "GPU is lost",
        "CUDA error: hardware stack error",
        "uncorrectable NVLink error",
    ];
    WORDS.iter().any(|w| message.contains(w))
}

/// What kubelets say of a container that waits because of its image or configuration.
const OF_THE_USER: [&str; 5] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
];

/// What container runtimes say where a registry does not answer, or not now: errors of Go's `net` and `net/http`, status lines of
/// HTTP, codes of the OCI distribution specification. A host name that does not exist (`no such host`) is the user's mistake.
const REGISTRY_AWAY: [&str; 18] = [
    "i/o timeout",
    "connection refused",
    "connection reset",
    "connection timed out",
    "no route to host",
    "network is unreachable",
    "TLS handshake timeout",
    "deadline exceeded",
    "server misbehaving",
    "failure in name resolution",
    ": EOF",
    "unexpected EOF",
    "500 Internal Server Error",
    "502 Bad Gateway",
    "503 Service Unavailable",
    "504 Gateway Time",
    "429 Too Many Requests",
    "toomanyrequests",
];

/// What container runtimes say of a container that they cannot make because of its image and specification.
const NOT_MADE: [&str; 4] =
    ["no command specified", "unable to find user", "no matching entries in", "executable file not found"];

/// Whether a container waits because of what its user wrote. A registry that is away is the cluster's failure; as nobody sees more of
/// it than these words, the tenth in a row counts as the user's.
pub(super) fn waits_for_its_user(reason: &str, message: &str) -> bool {
    let registry_away = REGISTRY_AWAY.iter().any(|words| message.contains(words));
    let not_made = reason == "CreateContainerError" && NOT_MADE.iter().any(|words| message.contains(words));
    OF_THE_USER.contains(&reason) && !registry_away || not_made
}
