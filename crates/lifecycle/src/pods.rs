//! Manifests: the gang's pods and Service, built from the user's template.
//!
//! The operator sets node, scheduler, GPUs, names, rendezvous, progress, checkpoint and grace period; all else
//! stays the user's. Admission refuses templates that set the operator's fields; else the operator's value wins.

use std::collections::BTreeMap;

use andreas_api::names::{self, progress_path};
use andreas_api::quantity;
use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::{Allocation, Rendezvous, ResourcesPer, TrainingJobSpec};
use k8s_openapi::api::core::v1::{
    Affinity, Container, DownwardAPIProjection, DownwardAPIVolumeFile, EmptyDirVolumeSource, EnvVar,
    NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectFieldSelector,
    PersistentVolumeClaimVolumeSource, Pod, PodSpec, ProjectedVolumeSource, ResourceRequirements, Service,
    ServiceAccountTokenProjection, ServicePort, ServiceSpec, Toleration, Volume, VolumeMount,
    VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use ring::digest::{SHA256, digest};

use super::observed::{NodeFact, Settings};
use super::{devices, slurm};

/// Pod annotation: its node's boot ID at creation. A different one later proves that its containers are gone.
pub const ANNOTATION_BOOT_ID: &str = "andreas.dev/boot-id";
/// Seconds between SIGTERM and SIGKILL for jobs without a checkpoint: Kubernetes' default.
const GRACE_WITHOUT_CHECKPOINT: i64 = 30;
/// Lifetime of a progress token, s; the kubelet renews it.
const TOKEN_SECONDS: i64 = 3600;
const PROGRESS_VOLUME: &str = "andreas-progress";
const CHECKPOINT_VOLUME: &str = "andreas-checkpoint";
const SHARED_MEMORY_VOLUME: &str = "andreas-shared-memory";

/// Longest grace period of a checkpoint, s; the schema has the same limit.
pub const MAX_GRACE_SECONDS: i64 = 3600;

/// Seconds between SIGTERM and SIGKILL of the job's pods.
pub fn grace_seconds(spec: &TrainingJobSpec) -> i64 {
    spec.checkpoint.as_ref().map_or(GRACE_WITHOUT_CHECKPOINT, |c| i64::from(c.grace_seconds))
}

/// The gang's Service; `None` for a single worker.
///
/// `publishNotReadyAddresses`: without it, pods that are not ready have no DNS name. A readiness probe that
/// waits for training would then wait forever.
pub fn gang_service(job: &SlimTrainingJob, allocation: &Allocation) -> Option<Service> {
    (allocation.nodes.len() > 1).then(|| Service {
        metadata: ObjectMeta {
            name: Some(service_name(job)),
            namespace: job.metadata.namespace.clone(),
            labels: Some(identity(job)),
            owner_references: Some(vec![owner(job)]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".into()),
            publish_not_ready_addresses: Some(true),
            // Both labels: admission policies guard them, and the index finds our pods by the first.
            selector: Some(identity(job)),
            ports: Some(vec![ServicePort {
                name: Some("rendezvous".into()),
                port: i32::from(names::MASTER_PORT),
                target_port: Some(IntOrString::Int(i32::from(names::MASTER_PORT))),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    })
}

/// The pod of one gang member.
pub fn member(
    job: &SlimTrainingJob,
    allocation: &Allocation,
    index: usize,
    nodes: &BTreeMap<String, NodeFact>,
    settings: &Settings,
) -> Pod {
    let node = allocation.nodes.get(index).map(String::as_str);
    let mut pod = worker(job, allocation, index, settings);
    if let (Some(node), Some(spec)) = (node, &mut pod.spec) {
        pin(spec, node);
        if let Some(fact) = nodes.get(node).filter(|f| !f.boot_id.is_empty()) {
            pod.metadata
                .annotations
                .get_or_insert_default()
                .insert(ANNOTATION_BOOT_ID.into(), fact.boot_id.clone());
        }
    }
    pod
}

/// A worker with this many GPUs and no node: for dry runs and to read its requests.
pub fn unplaced_worker(job: &SlimTrainingJob, attempt: i64, gpus: i32, settings: &Settings) -> Pod {
    let allocation = Allocation {
        attempt,
        generation: 1,
        gpu_type: String::new(),
        gpus,
        gpus_per_worker: gpus,
        nodes: vec![String::new()],
        power_limit_watts: None,
        limit_changed: false,
        guard_watts: None,
        guard_reached: false,
        since: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH),
        bound_time: None,
        running_time: None,
        watts: 0,
        host_watts: 0,
    };
    worker(job, &allocation, 0, settings)
}

/// Digest of all inputs of [`unplaced_worker`] except the job's name and UID.
pub type WorkerDigest = [u8; 32];

/// The digest of a worker with this many GPUs; `None` if the spec does not serialize to JSON.
pub fn worker_digest(spec: &TrainingJobSpec, gpus: i32) -> Option<WorkerDigest> {
    let pod = (&spec.template, &spec.container, spec.resources_per, &spec.checkpoint);
    let parts = (pod, spec.rendezvous, spec.shared_memory_mib, gpus);
    let text = serde_json::to_vec(&parts).ok()?;
    digest(&SHA256, &text).as_ref().try_into().ok()
}

fn worker(job: &SlimTrainingJob, allocation: &Allocation, index: usize, settings: &Settings) -> Pod {
    let template = &job.spec.template;
    let name = names::pod_name(&job_name(job), allocation.attempt, index);
    let mut labels = template.metadata.as_ref().and_then(|m| m.labels.clone()).unwrap_or_default();
    names::add_recommended_labels(&mut labels, &job_name(job));
    labels.extend(identity(job));
    labels.insert(names::LABEL_ATTEMPT.into(), allocation.attempt.to_string());
    labels.insert(names::LABEL_INDEX.into(), index.to_string());
    labels.insert(names::LABEL_ALLOCATION.into(), allocation.generation.to_string());
    let mut annotations = template.metadata.as_ref().and_then(|m| m.annotations.clone()).unwrap_or_default();
    for (key, value) in names::ANNOTATIONS_DO_NOT_EVICT {
        annotations.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }

    let mut spec = template.spec.clone().unwrap_or_default();
    spec.restart_policy = Some("Never".into());
    spec.termination_grace_period_seconds = Some(grace_seconds(&job.spec));
    spec.active_deadline_seconds = None;
    spec.node_name = None;
    spec.scheduling_gates = None;
    spec.scheduler_name = settings.scheduler.clone();
    spec.priority = None;
    spec.priority_class_name = settings.priority_class.clone();
    spec.preemption_policy = None;
    (spec.hostname, spec.subdomain) =
        if allocation.nodes.len() > 1 { (Some(name.clone()), Some(service_name(job))) } else { (None, None) };
    tolerate(&mut spec);
    multiply(&mut spec, job.spec.resources_per, allocation.gpus_per_worker);
    for container in &mut spec.containers {
        container.restart_policy = None;
        container.termination_message_policy.get_or_insert_with(|| "FallbackToLogsOnError".into());
    }
    for container in spec.init_containers.iter_mut().flatten() {
        container.termination_message_policy.get_or_insert_with(|| "FallbackToLogsOnError".into());
    }
    strip_gpus(&mut spec);
    if host_network(&spec) {
        // The default resolves no names of the cluster there, and so no members of a gang.
        spec.dns_policy.get_or_insert_with(|| "ClusterFirstWithHostNet".into());
    }
    let shared_memory = shared_memory_volume(&mut spec, job);
    checkpoint_volume(&mut spec, job);
    if let Some(progress) = &settings.progress {
        annotations.insert(names::ANNOTATION_PROGRESS_CA.into(), progress.ca_pem.clone());
        spec.volumes.get_or_insert_default().push(progress_volume(job));
    }
    let on_host = host_network(&spec);
    let trains = job.spec.training_container();
    if let Some(container) = spec.containers.iter_mut().find(|c| Some(c.name.as_str()) == trains) {
        request_gpus(container, allocation.gpus_per_worker);
        mount(container, job, settings, shared_memory);
        let port = names::master_port(on_host, &uid(job), allocation.attempt);
        let ours = environment(job, allocation, index, port, settings);
        let env = container.env.get_or_insert_default();
        env.retain(|e| ours.iter().all(|o| o.name != e.name));
        // Ours first, so that the user's may refer to them as $(NAME).
        env.splice(0..0, ours);
    }
    devices::hide(&mut spec, trains);
    if job.spec.rendezvous == Rendezvous::Slurm {
        slurm::prepare(&mut spec, &mut annotations, trains, &place(job, allocation, index, on_host));
    }
    Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: job.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: (!annotations.is_empty()).then_some(annotations),
            owner_references: Some(vec![owner(job)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

fn job_name(job: &SlimTrainingJob) -> String {
    job.metadata.name.clone().unwrap_or_default()
}

fn uid(job: &SlimTrainingJob) -> String {
    job.metadata.uid.clone().unwrap_or_default()
}

fn service_name(job: &SlimTrainingJob) -> String {
    names::gang_service_name(&job_name(job), &uid(job))
}

fn identity(job: &SlimTrainingJob) -> BTreeMap<String, String> {
    BTreeMap::from([
        (names::LABEL_JOB.to_owned(), job_name(job)),
        (names::LABEL_JOB_UID.to_owned(), uid(job)),
    ])
}

fn owner(job: &SlimTrainingJob) -> OwnerReference {
    OwnerReference {
        api_version: format!("{}/{}", names::GROUP, names::VERSION),
        block_owner_deletion: Some(true),
        controller: Some(true),
        kind: "TrainingJob".into(),
        name: job_name(job),
        uid: uid(job),
    }
}

/// Required node affinity by `matchFields: metadata.name` with exactly one value, in every term (terms are
/// alternatives). The scheduler then evaluates one node only, at any cluster size.
fn pin(spec: &mut PodSpec, node: &str) {
    let affinity = spec.affinity.get_or_insert_with(Affinity::default);
    let required = affinity
        .node_affinity
        .get_or_insert_with(NodeAffinity::default)
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_with(NodeSelector::default);
    // An empty term matches no node; with our field added it would match.
    required.node_selector_terms.retain(|t| {
        t.match_expressions.as_ref().is_some_and(|e| !e.is_empty())
            || t.match_fields.as_ref().is_some_and(|f| !f.is_empty())
    });
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        let fields = term.match_fields.get_or_insert_default();
        fields.retain(|f| f.key != "metadata.name");
        fields.push(NodeSelectorRequirement {
            key: "metadata.name".into(),
            operator: "In".into(),
            values: Some(vec![node.to_owned()]),
        });
    }
}

/// An unreachable node must not evict a healthy run: admission would add a toleration of 300 s. Only the
/// operator ends a run for that reason. Managed nodes may have a taint named like the GPU resource.
fn tolerate(spec: &mut PodSpec) {
    const NODE_CONDITION_TAINTS: [&str; 2] =
        ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
    let tolerations = spec.tolerations.get_or_insert_default();
    tolerations.retain(|t| {
        let of_node_condition = t.key.as_deref().is_some_and(|k| NODE_CONDITION_TAINTS.contains(&k));
        !(of_node_condition && t.effect.as_deref().is_none_or(|e| e == "NoExecute"))
    });
    for key in NODE_CONDITION_TAINTS {
        tolerations.push(Toleration {
            key: Some(key.into()),
            operator: Some("Exists".into()),
            effect: Some("NoExecute".into()),
            ..Toleration::default()
        });
    }
    let gpu = Toleration {
        key: Some(names::GPU_RESOURCE.into()),
        operator: Some("Exists".into()),
        ..Toleration::default()
    };
    if !tolerations.contains(&gpu) {
        tolerations.push(gpu);
    }
}

/// With `resourcesPer: Gpu`, requests and limits of ordinary containers are per GPU. Init containers, native
/// sidecars included, are per worker.
fn multiply(spec: &mut PodSpec, per: ResourcesPer, gpus: i32) {
    if per == ResourcesPer::Worker {
        return;
    }
    let factor = u32::try_from(gpus).unwrap_or(1).max(1);
    let each = |map: &mut Option<BTreeMap<String, Quantity>>| {
        for (name, quantity) in map.iter_mut().flatten() {
            *quantity = quantity::times(quantity, factor);
            // GPUs may share a device, but a pod gets whole ones.
            if names::is_extended_resource(name) {
                *quantity = quantity::whole(quantity);
            }
        }
    };
    for resources in spec.containers.iter_mut().filter_map(|c| c.resources.as_mut()) {
        each(&mut resources.requests);
        each(&mut resources.limits);
    }
}

/// The operator alone sets GPU counts, on the training container only.
fn strip_gpus(spec: &mut PodSpec) {
    let containers = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
    for resources in containers.filter_map(|c| c.resources.as_mut()) {
        for map in [&mut resources.requests, &mut resources.limits].into_iter().flatten() {
            map.remove(names::GPU_RESOURCE);
        }
    }
}

fn request_gpus(container: &mut Container, gpus: i32) {
    let resources = container.resources.get_or_insert_with(ResourceRequirements::default);
    for map in [&mut resources.requests, &mut resources.limits] {
        map.get_or_insert_default().insert(names::GPU_RESOURCE.into(), Quantity(gpus.to_string()));
    }
}

fn claim_to_mount(job: &SlimTrainingJob) -> Option<(&str, &str)> {
    let checkpoint = job.spec.checkpoint.as_ref()?;
    Some((checkpoint.claim_name.as_deref()?, checkpoint.path.as_str()))
}

fn checkpoint_volume(spec: &mut PodSpec, job: &SlimTrainingJob) {
    if let Some((claim, _)) = claim_to_mount(job) {
        spec.volumes.get_or_insert_default().push(Volume {
            name: CHECKPOINT_VOLUME.into(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.to_owned(),
                read_only: None,
            }),
            ..Volume::default()
        });
    }
}

fn host_network(spec: &PodSpec) -> bool {
    spec.host_network == Some(true)
}

/// Shared memory for data loaders; false where there is none to mount. A pod with the node's IPC has the node's,
/// and a template may mount its own.
fn shared_memory_volume(spec: &mut PodSpec, job: &SlimTrainingJob) -> bool {
    let size = job.spec.shared_memory_mib;
    let trains = job.spec.training_container();
    let container = spec.containers.iter().find(|c| Some(c.name.as_str()) == trains);
    let mut mounts = container.and_then(|c| c.volume_mounts.as_ref()).into_iter().flatten();
    let mounted = mounts.any(|m| m.mount_path.trim_end_matches('/') == names::SHARED_MEMORY_MOUNT);
    if size == Some(0) || spec.host_ipc == Some(true) || mounted {
        return false;
    }
    spec.volumes.get_or_insert_default().push(Volume {
        name: SHARED_MEMORY_VOLUME.into(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: Some("Memory".into()),
            size_limit: size.map(|mib| Quantity(format!("{mib}Mi"))),
        }),
        ..Volume::default()
    });
    true
}

/// Token (for this job only, renewed by the kubelet) and CA of the progress address. A ConfigMap with the CA
/// would need rights in every namespace; a pod annotation does not.
fn progress_volume(job: &SlimTrainingJob) -> Volume {
    let token = VolumeProjection {
        service_account_token: Some(ServiceAccountTokenProjection {
            audience: Some(names::progress_audience(&uid(job))),
            expiration_seconds: Some(TOKEN_SECONDS),
            path: "token".into(),
        }),
        ..VolumeProjection::default()
    };
    let ca = VolumeProjection {
        downward_api: Some(DownwardAPIProjection {
            items: Some(vec![DownwardAPIVolumeFile {
                path: "ca.crt".into(),
                field_ref: Some(ObjectFieldSelector {
                    api_version: Some("v1".into()),
                    field_path: format!("metadata.annotations['{}']", names::ANNOTATION_PROGRESS_CA),
                }),
                ..DownwardAPIVolumeFile::default()
            }]),
        }),
        ..VolumeProjection::default()
    };
    Volume {
        name: PROGRESS_VOLUME.into(),
        projected: Some(ProjectedVolumeSource { sources: Some(vec![token, ca]), default_mode: None }),
        ..Volume::default()
    }
}

/// Adds the operator's mounts where the user has none at that path.
fn mount(container: &mut Container, job: &SlimTrainingJob, settings: &Settings, shared_memory: bool) {
    let mounts = container.volume_mounts.get_or_insert_default();
    let mut add = |name: &str, path: &str, read_only: bool| {
        if mounts.iter().all(|m| m.mount_path.trim_end_matches('/') != path.trim_end_matches('/')) {
            mounts.push(VolumeMount {
                name: name.into(),
                mount_path: path.into(),
                read_only: read_only.then_some(true),
                ..VolumeMount::default()
            });
        }
    };
    if let Some((_, path)) = claim_to_mount(job) {
        add(CHECKPOINT_VOLUME, path, false);
    }
    if shared_memory {
        add(SHARED_MEMORY_VOLUME, names::SHARED_MEMORY_MOUNT, false);
    }
    if settings.progress.is_some() {
        add(PROGRESS_VOLUME, names::PROGRESS_MOUNT, true);
    }
}

/// The name of a gang's member, which its Service knows.
fn host_name(job: &SlimTrainingJob, allocation: &Allocation, index: usize) -> String {
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let pod = names::pod_name(&job_name(job), allocation.attempt, index);
    format!("{pod}.{}.{namespace}.svc", service_name(job))
}

/// The place of a worker, as a batch script sees it. A single worker has no Service; its own name is in its hosts file.
fn place(job: &SlimTrainingJob, allocation: &Allocation, index: usize, on_host: bool) -> slurm::Place {
    let nodes = allocation.nodes.len();
    let hosts = if nodes > 1 {
        (0..nodes).map(|index| host_name(job, allocation, index)).collect()
    } else if on_host {
        vec!["localhost".to_owned()]
    } else {
        vec![names::pod_name(&job_name(job), allocation.attempt, 0)]
    };
    slurm::Place {
        job: job_name(job),
        uid: uid(job),
        attempt: allocation.attempt,
        index,
        hosts,
        gpus: u32::try_from(allocation.gpus_per_worker).unwrap_or(0),
    }
}

fn environment(
    job: &SlimTrainingJob,
    allocation: &Allocation,
    index: usize,
    port: u16,
    settings: &Settings,
) -> Vec<EnvVar> {
    use names::env;
    let namespace = job.metadata.namespace.clone().unwrap_or_default();
    let name = job_name(job);
    let master = if allocation.nodes.len() > 1 { host_name(job, allocation, 0) } else { "127.0.0.1".into() };
    let mut all = vec![
        (env::NNODES, allocation.nodes.len().to_string()),
        (env::NPROC_PER_NODE, allocation.gpus_per_worker.to_string()),
        (env::NODE_RANK, index.to_string()),
        (env::MASTER_ADDR, master.clone()),
        (env::MASTER_PORT, port.to_string()),
        (env::JOB, name.clone()),
        (env::ATTEMPT, allocation.attempt.to_string()),
        (env::GPU_TYPE, allocation.gpu_type.clone()),
    ];
    if job.spec.rendezvous != Rendezvous::Torchrun {
        all.push((env::PLAIN_MASTER_ADDR, master));
        all.push((env::PLAIN_MASTER_PORT, port.to_string()));
    }
    if job.spec.rendezvous == Rendezvous::Env {
        all.push((env::PLAIN_RANK, index.to_string()));
        all.push((env::PLAIN_WORKERS, allocation.nodes.len().to_string()));
    }
    if let Some(checkpoint) = &job.spec.checkpoint {
        all.push((env::CHECKPOINT_DIR, checkpoint.path.clone()));
    }
    if let Some(progress) = &settings.progress {
        let base = progress.base_url.trim_end_matches('/');
        all.push((env::PROGRESS_URL, format!("{base}{}", progress_path(&namespace, &name))));
        all.push((env::PROGRESS_CA, format!("{}/ca.crt", names::PROGRESS_MOUNT)));
        all.push((env::PROGRESS_TOKEN, format!("{}/token", names::PROGRESS_MOUNT)));
    }
    let variable =
        |(name, value): (&str, String)| EnvVar { name: name.into(), value: Some(value), value_from: None };
    all.into_iter().map(variable).collect()
}
