//! Fuzz targets: every parser that takes bytes from outside.
//!
//! [`TARGETS`] lists them: a name, a folder `corpus/<name>` of inputs that were seen or found, and a function that must return for
//! any bytes. Two drivers use the list. `tests/bounded.rs` runs the corpus and a fixed number of mutations of it in every test run,
//! the same ones each time. `guided/` is a cargo-fuzz project that lets libFuzzer search by coverage (`make long WHAT=fuzz TARGET=...`).
//!
//! What must never be here: a network, a sleep, a check that depends on the machine.

pub mod bounded;
pub mod mutate;
pub mod targets;

/// One parser.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, also that of its folder of inputs.
    pub name: &'static str,
    /// Who can send these bytes.
    pub sender: &'static str,
    /// Parses the bytes; returns whatever they are.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "adopted_workloads",
        sender: "tenants, through the API server",
        run: targets::adopted_workloads,
    },
    Target { name: "api_objects", sender: "tenants, through the API server", run: targets::api_objects },
    Target { name: "certificates", sender: "whoever connects by TLS", run: targets::certificates },
    Target {
        name: "certificate_secrets",
        sender: "whoever may write Secrets of the system's namespace",
        run: targets::certificate_secrets,
    },
    Target { name: "job_manifests", sender: "whoever calls `convert`", run: targets::job_manifests },
    Target { name: "kubelet_pod_resources", sender: "the kubelet", run: targets::kubelet_pod_resources },
    Target {
        name: "list_answers",
        sender: "the API server, with tenants' objects",
        run: targets::list_answers,
    },
    Target { name: "pod_logs", sender: "training programs", run: targets::pod_logs },
    Target { name: "profiles", sender: "whoever calls `profile import`", run: targets::profiles },
    Target { name: "program_descriptions", sender: "tenants' templates", run: targets::program_descriptions },
    Target { name: "progress_reports", sender: "training programs", run: targets::progress_reports },
    Target { name: "quantities", sender: "tenants, through the API server", run: targets::quantities },
    Target { name: "queries", sender: "tenants who ask what would be", run: targets::queries },
    Target {
        name: "scheduler_requests",
        sender: "whoever reaches the extender",
        run: targets::scheduler_requests,
    },
    Target { name: "setter_lines", sender: "a node agent that was taken over", run: targets::setter_lines },
    Target { name: "setter_record", sender: "the node's disk", run: targets::setter_record },
    Target {
        name: "watch_answers",
        sender: "the API server, with tenants' objects",
        run: targets::watch_answers,
    },
];

/// The folder with a target's inputs.
#[must_use]
pub fn corpus(target: &Target) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}
