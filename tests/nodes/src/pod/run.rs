//! A started container: a process in the sandbox, or a clock that stands for one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Container;
use rustix::process::Signal;
use tokio::time::Instant;

use super::env::{self, ConfigProblem, Environment, Place};
use super::probe::Probing;
use super::volumes::Volumes;
use crate::devices::{Demand, gpus_of_container};
use crate::hardware::{Hardware, IN_CONTAINER};
use crate::node::Node;
use crate::objects::{ANNOTATIONS, PodView};
use crate::sandbox::{self, ContainerSpec, Ended, Mount, Sandbox, SandboxError};
use crate::shared::Shared;

/// How long a simulated container takes to stop.
const STOPS_WITHIN: Duration = Duration::from_millis(100);
const SEARCH_PATH: &str = "/.pretend/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What all containers of one pod share.
pub(crate) struct PodContext {
    pub shared: Arc<Shared>,
    pub node: Arc<Node>,
    pub pod: Arc<PodView>,
    pub place: Place,
    /// UUIDs of the pod's GPUs.
    pub gpus: Vec<String>,
    /// Folder of the pod below the data folder.
    pub dir: PathBuf,
    pub volumes: parking_lot::Mutex<Volumes>,
}

impl PodContext {
    /// Where a container's output goes.
    pub fn log(&self, container: &str) -> PathBuf {
        let logs = self.shared.data_dir.join("logs").join(self.pod.namespace()).join(self.pod.name());
        logs.join(format!("{container}.log"))
    }

    pub fn termination_log(&self, container: &str) -> PathBuf {
        self.dir.join(container).join("termination-log")
    }
}

/// Why a container did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartProblem {
    /// Its configuration is not there (yet).
    #[error(transparent)]
    Config(#[from] ConfigProblem),
    /// Its program does not start.
    #[error(transparent)]
    Start(#[from] SandboxError),
    /// The machine.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// A started container.
pub(crate) enum Program {
    Process { container: sandbox::Container, sandbox: Arc<Sandbox> },
    Simulated { end: Option<(Instant, Ended)> },
}

impl Program {
    pub async fn start(ctx: &PodContext, container: &Container) -> Result<Self, StartProblem> {
        match &ctx.shared.sandbox {
            None => Ok(Self::simulated(ctx)),
            Some(sandbox) => {
                let spec = specify(ctx, container).await?;
                let file = ctx.dir.join(&container.name).join("spec.json");
                std::fs::write(&file, serde_json::to_vec(&spec).map_err(std::io::Error::other)?)?;
                let container = sandbox.spawn(file).await?;
                Ok(Self::Process { container, sandbox: Arc::clone(sandbox) })
            }
        }
    }

    fn simulated(ctx: &PodContext) -> Self {
        let seconds = ctx.pod.annotation(&format!("{ANNOTATIONS}/run-seconds"));
        let seconds = seconds.and_then(|text| text.parse::<f64>().ok());
        let end = seconds.filter(|seconds| seconds.is_finite() && *seconds >= 0.0).map(|seconds| {
            let at = Instant::now() + Duration::from_secs_f64(seconds.min(1e9));
            (at, Ended { code: Some(0), signal: None })
        });
        Self::Simulated { end }
    }

    pub fn pid(&self) -> Option<i32> {
        match self {
            Self::Process { container, .. } => Some(container.pid),
            Self::Simulated { .. } => None,
        }
    }

    /// What must be asked before it counts as ready; none where it always does.
    pub fn probing(&self, ctx: &PodContext, container: &Container) -> Option<Probing> {
        match self {
            Self::Process { sandbox, .. } => Some(Probing {
                sandbox: Arc::clone(sandbox),
                pod_ip: ctx.place.pod_ip.clone(),
                container: container.clone(),
                probe: container.readiness_probe.clone()?,
            }),
            Self::Simulated { .. } => None,
        }
    }

    /// Resolves when it has ended. Cancel safe; not to be asked again afterwards.
    pub async fn ended(&mut self) -> Ended {
        const LOST: Ended = Ended { code: Some(255), signal: None };
        match self {
            Self::Process { container, .. } => (&mut container.ended).await.unwrap_or(LOST),
            Self::Simulated { end: Some((at, ended)) } => {
                tokio::time::sleep_until(*at).await;
                *ended
            }
            Self::Simulated { end: None } => std::future::pending().await,
        }
    }

    pub async fn signal(&mut self, signal: Signal) {
        match self {
            Self::Process { container, sandbox } => {
                if let Err(error) = sandbox.signal(container.id, signal).await {
                    tracing::debug!(pid = container.pid, ?signal, %error, "signal");
                }
            }
            Self::Simulated { end } => match signal {
                Signal::TERM => {
                    let at = Instant::now() + STOPS_WITHIN;
                    if end.is_none_or(|(earlier, _)| at < earlier) {
                        *end = Some((at, Ended { code: Some(143), signal: None }));
                    }
                }
                Signal::KILL => *end = Some((Instant::now(), Ended { code: None, signal: Some(9) })),
                _ => {}
            },
        }
    }
}

/// Everything the sandbox must know to start a container.
async fn specify(ctx: &PodContext, container: &Container) -> Result<ContainerSpec, StartProblem> {
    let (shared, pod) = (&ctx.shared, &ctx.pod);
    let mut given = vec![
        ("PATH".to_owned(), SEARCH_PATH.to_owned()),
        ("HOME".to_owned(), "/root".to_owned()),
        ("HOSTNAME".to_owned(), pod.hostname()),
    ];
    if let Some((host, port)) = shared.cluster.lock().api_service() {
        given.push(("KUBERNETES_SERVICE_HOST".to_owned(), host));
        given.push(("KUBERNETES_SERVICE_PORT".to_owned(), port.to_string()));
    }
    if Demand::of_container(container).gpus > 0 {
        // As NVIDIA's device plugin hands them over, and the GPU type for programs that cannot ask a driver.
        let gpus = gpus_of_container(pod, &ctx.gpus, container);
        given.push(("NVIDIA_VISIBLE_DEVICES".to_owned(), gpus.join(",")));
        given.push(("ANDREAS_GPU_TYPE".to_owned(), ctx.node.group.gpu.clone()));
    }
    let Environment { mut values, command, args } =
        env::resolve(shared, pod, container, &ctx.place, given).await?;
    let driver = ctx.node.hardware.get().filter(|_| asks_for_driver(&values));
    if driver.is_some() {
        let path = values.entry("LD_LIBRARY_PATH".to_owned()).or_default();
        *path = if path.is_empty() { IN_CONTAINER.to_owned() } else { format!("{IN_CONTAINER}:{path}") };
        values.insert(nvidia_ml::ENV_SPEC.to_owned(), Hardware::spec_in_container());
    }
    let image = shared.config.image(container.image.as_deref().unwrap_or_default());
    let argv = match image {
        Some(image) if image.replace_command || command.is_empty() => {
            let args = if image.replace_command { Vec::new() } else { args };
            let name = image.program.file_name().unwrap_or_default().to_string_lossy();
            [vec![format!("/.pretend/bin/{name}")], args].concat()
        }
        _ => [command, args].concat(),
    };
    let own = ctx.dir.join(&container.name);
    let (root, log) = (own.join("root"), ctx.log(&container.name));
    for folder in [&root, log.parent().unwrap_or(&root)] {
        std::fs::create_dir_all(folder)?;
    }
    let ended_by = ctx.termination_log(&container.name);
    std::fs::write(&ended_by, "")?;
    let mut mounts = mounts(ctx, container)?;
    let target =
        container.termination_message_path.clone().unwrap_or_else(|| "/dev/termination-log".to_owned());
    if let Some(driver) = driver {
        mounts.push(Mount { source: driver.folder.clone(), target: IN_CONTAINER.into(), read_only: false });
    }
    mounts.push(Mount { source: ended_by, target: target.into(), read_only: false });
    Ok(ContainerSpec {
        argv,
        env: values.into_iter().collect(),
        working_dir: container.working_dir.as_deref().filter(|dir| !dir.is_empty()).unwrap_or("/").into(),
        pod_ip: ctx.place.pod_ip.parse().ok(),
        hostname: pod.hostname(),
        root,
        log,
        etc: ctx.dir.join("etc"),
        mounts,
        programs: shared.config.images.iter().map(|image| image.program.clone()).collect(),
        host_paths: shared.config.host_paths.clone(),
    })
}

/// Whether NVIDIA's container runtime would show the driver: it goes by this variable.
fn asks_for_driver(values: &BTreeMap<String, String>) -> bool {
    values.get("NVIDIA_VISIBLE_DEVICES").is_some_and(|seen| !["", "none", "void"].contains(&seen.as_str()))
}

fn mounts(ctx: &PodContext, container: &Container) -> Result<Vec<Mount>, StartProblem> {
    let volumes = ctx.volumes.lock();
    let mut mounts = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let folder = volumes.folders.get(&mount.name);
        let folder = folder.ok_or_else(|| ConfigProblem(format!("volume {} not found", mount.name)))?;
        let below = mount.sub_path.as_deref().unwrap_or_default();
        if below.starts_with('/') || below.split('/').any(|part| part == "..") {
            return Err(ConfigProblem(format!("subPath {below} must stay within its volume")).into());
        }
        let source = folder.join(below);
        if !source.exists() {
            std::fs::create_dir_all(&source)?;
        }
        let read_only = mount.read_only.unwrap_or(false);
        mounts.push(Mount { source, target: mount.mount_path.clone().into(), read_only });
    }
    Ok(mounts)
}
