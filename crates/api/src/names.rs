//! Names that users, tests and the other components hold on to.

use std::collections::BTreeMap;

/// API group of the custom resources.
pub const GROUP: &str = "andreas.dev";
/// Served and stored version.
pub const VERSION: &str = "v1alpha1";
/// `spec.schedulerName` of the pods we make (extender mode).
pub const SCHEDULER: &str = "andreas";
/// Name of the one [`crate::EnergyPolicy`].
pub const DEFAULT_POLICY: &str = "default";
/// PriorityClass of training pods (`preemptionPolicy: Never`), made by the chart.
pub const PRIORITY_CLASS: &str = "andreas-training";
/// Field manager of the operator's writes.
pub const FIELD_MANAGER: &str = "andreas-operator";
/// Where the claim of checkpoints is mounted, unless the job says otherwise.
pub const CHECKPOINT_FOLDER: &str = "/checkpoint";

/// Extended resource of whole GPUs, as NVIDIA's device plugin names it.
pub const GPU_RESOURCE: &str = "nvidia.com/gpu";
/// What the names of MIG instances begin with, as resources and as labels: `nvidia.com/mig-1g.10gb`.
pub const MIG_PREFIX: &str = "nvidia.com/mig-";
/// Label by which NVIDIA's GPU operator marks nodes with GPUs.
pub const LABEL_GPU_PRESENT: &str = "nvidia.com/gpu.present";
/// Label of GPU feature discovery: the product; the first of the default type labels.
pub const LABEL_GPU_PRODUCT: &str = "nvidia.com/gpu.product";
/// Label of GPU feature discovery: memory of one GPU, MiB.
pub const LABEL_GPU_MEMORY: &str = "nvidia.com/gpu.memory";
/// Processor architecture of a node, by its kubelet.
pub const LABEL_ARCHITECTURE: &str = "kubernetes.io/arch";
/// Label of GPU feature discovery: GPUs on the node.
pub const LABEL_GPU_COUNT: &str = "nvidia.com/gpu.count";
/// Label of GPU feature discovery: how many pods share one GPU; 0 where MIG mode is on.
pub const LABEL_GPU_REPLICAS: &str = "nvidia.com/gpu.replicas";
/// Label of GPU feature discovery: how pods share a GPU: `none`, `time-slicing`, `mps`.
pub const LABEL_GPU_SHARING: &str = "nvidia.com/gpu.sharing-strategy";
/// Label of GPU feature discovery: whether one of the GPUs could use MIG.
pub const LABEL_MIG_CAPABLE: &str = "nvidia.com/mig.capable";
/// Label of GKE: the GPU type of a node pool.
pub const LABEL_GKE_ACCELERATOR: &str = "cloud.google.com/gke-accelerator";
/// Label of GKE: the MIG profile that each GPU of a node pool is cut into.
pub const LABEL_GKE_PARTITION: &str = "cloud.google.com/gke-gpu-partition-size";
/// Label of GKE: how pods share a GPU: `time-sharing`, `mps`.
pub const LABEL_GKE_SHARING: &str = "cloud.google.com/gke-gpu-sharing-strategy";
/// Label of GKE: how many pods may share one GPU.
pub const LABEL_GKE_SHARED_CLIENTS: &str = "cloud.google.com/gke-max-shared-clients-per-gpu";
/// Label of a node: its host name, by which pods are bound to one node.
pub const LABEL_HOSTNAME: &str = "kubernetes.io/hostname";
/// Label of the cloud's machine type; the last of the default type labels.
pub const LABEL_INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";

/// Pod label: name of the TrainingJob.
pub const LABEL_JOB: &str = "andreas.dev/job";
/// Pod label: UID of the TrainingJob.
pub const LABEL_JOB_UID: &str = "andreas.dev/job-uid";
/// Pod label: number of the attempt, from 1.
pub const LABEL_ATTEMPT: &str = "andreas.dev/attempt";
/// Pod label: index of the member in its gang, from 0.
pub const LABEL_INDEX: &str = "andreas.dev/index";

/// Adds Kubernetes' recommended labels to those of a worker of this job: tools for logs and costs group pods by them. Those of its
/// template stay, but for who manages it.
pub fn add_recommended_labels(labels: &mut BTreeMap<String, String>, job: &str) {
    for (key, value) in [("name", "andreas-training"), ("instance", job), ("component", "worker")] {
        labels.entry(format!("app.kubernetes.io/{key}")).or_insert_with(|| value.to_owned());
    }
    labels.insert("app.kubernetes.io/managed-by".to_owned(), "andreas-operator".to_owned());
}

/// Pod label: generation of the allocation that the pod carries out.
pub const LABEL_ALLOCATION: &str = "andreas.dev/allocation";

/// Label of a Job, JobSet, TrainJob, PyTorchJob or RayJob with the value `true`: ANDREAS plans it and starts it.
pub const LABEL_ADOPT: &str = "andreas.dev/adopt";
/// Pod label: UID of the TrainingJob that stands for the adopted workload whose pod it is.
pub const LABEL_ADOPTED: &str = "andreas.dev/adopted";
/// Pod label: attempt of the adopted workload, from 1.
pub const LABEL_ADOPTED_ATTEMPT: &str = "andreas.dev/adopted-attempt";
/// Annotation of an adopted workload: the attempt that it was last released for.
pub const ANNOTATION_ADOPTED_ATTEMPT: &str = "andreas.dev/adopted-attempt";
/// Annotation of an adopted workload: what its pod templates said before ANDREAS chose nodes, to be restored.
pub const ANNOTATION_FOUND: &str = "andreas.dev/found";
/// Scheduling gate of adopted pods that are spread over several nodes: removed when the pod's node is chosen.
pub const GATE_NODE: &str = "andreas.dev/node";
/// Annotation of an adopted workload: `spec.deadline`.
pub const ANNOTATION_DEADLINE: &str = "andreas.dev/deadline";
/// Annotation of an adopted workload: `spec.deadlineAfter`, from the creation of the workload.
pub const ANNOTATION_DEADLINE_AFTER: &str = "andreas.dev/deadline-after";
/// Annotation of an adopted workload: `spec.weight`.
pub const ANNOTATION_WEIGHT: &str = "andreas.dev/weight";
/// Annotation of an adopted workload: `spec.epochs`.
pub const ANNOTATION_EPOCHS: &str = "andreas.dev/epochs";
/// Annotation of an adopted workload: `spec.profileRef`.
pub const ANNOTATION_PROFILE: &str = "andreas.dev/profile";
/// Annotation of an adopted workload: `spec.preemption`.
pub const ANNOTATION_PREEMPTION: &str = "andreas.dev/preemption";
/// Annotation of an adopted workload: `true` if it goes on where it was after it was stopped.
pub const ANNOTATION_CHECKPOINT: &str = "andreas.dev/checkpoint";
/// Annotation of an adopted workload: how many GPUs it may be given, `2-8` or `2,4,8`; its pods follow.
pub const ANNOTATION_GPUS: &str = "andreas.dev/gpus";
/// Annotation of an adopted workload: `spec.gpus.types`, separated by commas.
pub const ANNOTATION_GPU_TYPES: &str = "andreas.dev/gpu-types";

/// TrainingJob label: name of its TrainingProfile, where `spec.profileRef` names none.
pub const LABEL_PROFILE: &str = "andreas.dev/profile";
/// TrainingJob annotation: the submitting user, written by `kubectl andreas submit`. Not verified; for accounts.
pub const ANNOTATION_USER: &str = "andreas.dev/user";
/// TrainingProfile annotation: the program whose runs share it.
pub const ANNOTATION_PROGRAM: &str = "andreas.dev/program";
/// TrainingProfile label: the program that made it. Those that the operator made are removed when no job has used them for long.
pub const LABEL_MADE_BY: &str = "andreas.dev/made-by";

/// Node annotation: UID of the NodePower by which the node's machine goes off. Without it node-power may not delete the Node.
pub const ANNOTATION_GOING_OFF: &str = "andreas.dev/going-off";
/// Node annotation: names of annotations, separated by commas, that are restored when its machine was off.
pub const ANNOTATION_KEEP: &str = "andreas.dev/keep-annotations";
/// Node annotation, `true`: the health checks of the node's Machine are paused, so that the Node may be deleted.
pub const ANNOTATION_CHECKS_PAUSED: &str = "andreas.dev/health-checks-paused";
/// Node annotation: the node was cordoned before its machine went off, and stays so.
pub const ANNOTATION_WAS_CORDONED: &str = "andreas.dev/was-cordoned";

/// Annotation written with the Binding: generation of the allocation.
pub const ANNOTATION_ALLOCATION: &str = "andreas.dev/allocation";
/// Pod annotation that carries the operator's CA certificate (PEM) to the container by a downward-API volume.
pub const ANNOTATION_PROGRESS_CA: &str = "andreas.dev/progress-ca";
/// What the pod annotations begin with that carry the programs of a batch script to the container, likewise: the name of one follows.
pub const ANNOTATION_SLURM_PREFIX: &str = "andreas.dev/slurm-";
/// Namespace annotation: largest `spec.weight` of its TrainingJobs.
pub const ANNOTATION_MAX_WEIGHT: &str = "andreas.dev/max-weight";

/// Pod annotations that keep node autoscalers from evicting a run to save a node, with the value that a pod of ours gets
/// unless its template says otherwise: Cluster Autoscaler's, Karpenter's.
pub const ANNOTATIONS_DO_NOT_EVICT: [(&str, &str); 2] =
    [("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"), ("karpenter.sh/do-not-disrupt", "true")];

/// Header of the answer to a report: energy of the job's GPUs so far, J, all attempts.
pub const HEADER_ENERGY: &str = "andreas-energy-joules";
/// Audience of progress tokens: `andreas.dev/progress/<uid of the TrainingJob>`.
pub const PROGRESS_AUDIENCE_PREFIX: &str = "andreas.dev/progress/";

/// Environment of the training container. torchrun's names, Kubeflow Trainer's progress protocol, and ours.
pub mod env {
    /// Number of workers (torchrun `--nnodes`).
    pub const NNODES: &str = "PET_NNODES";
    /// GPUs of one worker (torchrun `--nproc-per-node`).
    pub const NPROC_PER_NODE: &str = "PET_NPROC_PER_NODE";
    /// Index of the worker (torchrun `--node-rank`).
    pub const NODE_RANK: &str = "PET_NODE_RANK";
    /// Host name of worker 0.
    pub const MASTER_ADDR: &str = "PET_MASTER_ADDR";
    /// Port of the rendezvous on worker 0.
    pub const MASTER_PORT: &str = "PET_MASTER_PORT";
    /// Host name of worker 0, by PyTorch's `env://`; only with `rendezvous: Env` or `Slurm`.
    pub const PLAIN_MASTER_ADDR: &str = "MASTER_ADDR";
    /// Port of the rendezvous on worker 0, likewise.
    pub const PLAIN_MASTER_PORT: &str = "MASTER_PORT";
    /// Index of the worker, only with `rendezvous: Env`.
    pub const PLAIN_RANK: &str = "RANK";
    /// Number of workers, only with `rendezvous: Env`.
    pub const PLAIN_WORKERS: &str = "WORLD_SIZE";
    /// Full address to post progress to.
    pub const PROGRESS_URL: &str = "KUBEFLOW_TRAINER_SERVER_URL";
    /// File with the CA of that address.
    pub const PROGRESS_CA: &str = "KUBEFLOW_TRAINER_SERVER_CA_CERT";
    /// File with the bearer token for that address.
    pub const PROGRESS_TOKEN: &str = "KUBEFLOW_TRAINER_SERVER_TOKEN";
    /// Folder of checkpoints; kept between attempts when the job has a checkpoint claim.
    pub const CHECKPOINT_DIR: &str = "CHECKPOINT_DIR";
    /// Number of the attempt, from 1.
    pub const ATTEMPT: &str = "ANDREAS_ATTEMPT";
    /// GPU type of the allocation (value of the product label).
    pub const GPU_TYPE: &str = "ANDREAS_GPU_TYPE";
    /// Name of the TrainingJob.
    pub const JOB: &str = "ANDREAS_JOB";
}

/// Port of the rendezvous of a gang in the pod network.
pub const MASTER_PORT: u16 = 29500;
/// First port, and number of ports, of rendezvous in the network of the node: below the usual ranges of node ports and of outgoing
/// connections.
pub const HOST_MASTER_PORTS: (u16, u16) = (20_000, 9_500);
/// Where POSIX shared memory is mounted.
pub const SHARED_MEMORY_MOUNT: &str = "/dev/shm";
/// Folder in the container where the progress token and CA are mounted.
pub const PROGRESS_MOUNT: &str = "/var/run/secrets/andreas.dev/progress";

/// Longest name of a TrainingJob: `<name>-<attempt>-<index>` and `<name>-gang-<5>` must stay host names.
pub const MAX_JOB_NAME: usize = 48;

/// Whether a TrainingJob may have this name: a label of a host name (DNS-1035) of at most [`MAX_JOB_NAME`] characters.
#[must_use]
pub fn is_job_name(name: &str) -> bool {
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let ends = name.starts_with(|c: char| c.is_ascii_lowercase()) && !name.ends_with('-');
    ends && name.len() <= MAX_JOB_NAME && name.chars().all(inside)
}

/// Whether a resource is an extended one, such as a device: the API server takes whole numbers of it only.
#[must_use]
pub fn is_extended_resource(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/")
}

/// Name of a member's pod: `<job>-<attempt>-<index>`.
pub fn pod_name(job: &str, attempt: i64, index: usize) -> String {
    format!("{job}-{attempt}-{index}")
}

/// Name of a gang's headless Service: `<job>-gang-<first 5 of the UID>`.
pub fn gang_service_name(job: &str, uid: &str) -> String {
    let head: String = uid.chars().filter(char::is_ascii_alphanumeric).take(5).collect();
    format!("{job}-gang-{head}")
}

/// Port of the rendezvous of one attempt. In the node's network it depends on job and attempt, because workers of several jobs share it.
pub fn master_port(host_network: bool, uid: &str, attempt: i64) -> u16 {
    if !host_network {
        return MASTER_PORT;
    }
    // FNV-1a: the same on every machine and in every release.
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = uid.bytes().chain(attempt.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, step);
    let (first, count) = HOST_MASTER_PORTS;
    first + u16::try_from(hash % u64::from(count)).unwrap_or(0)
}

/// URL path of a job's progress reports, as in Kubeflow Trainer's protocol, so its clients work unchanged.
pub fn progress_path(namespace: &str, job: &str) -> String {
    format!("/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs/{job}/status")
}

/// Audience of the progress token of one TrainingJob.
pub fn progress_audience(uid: &str) -> String {
    format!("{PROGRESS_AUDIENCE_PREFIX}{uid}")
}
