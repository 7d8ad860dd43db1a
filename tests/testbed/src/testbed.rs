//! [`Testbed`]: one running control plane, and what can be done to it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::audit::{AuditError, AuditLog};
use crate::boot;
use crate::components::{self, Component, Layout, Ports};
use crate::identity::IdentityError;
use crate::pki::{Pki, PkiError};
use crate::ports::{NoFreePort, PortLease};
use crate::process::{Process, ProcessError, ProcessSpec, ProcessState};
use crate::programs::{Programs, ProgramsError};
use crate::sandbox::{Sandbox, SandboxError};
use crate::scheduler::{SchedulerConfig, SchedulerConfigError};

/// How long one step of a start may take. A start takes seconds; a busy machine gets room.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(90);

/// A test bed could not be started or did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// The programs.
    #[error(transparent)]
    Programs(#[from] ProgramsError),
    /// The folder or its janitor.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// Keys and certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// Kubeconfigs and clients.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The scheduler's configuration.
    #[error(transparent)]
    SchedulerConfig(#[from] SchedulerConfigError),
    /// No port.
    #[error(transparent)]
    Port(#[from] NoFreePort),
    /// A process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file could not be written.
    #[error("cannot write {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The component is not part of this test bed.
    #[error("this test bed has no {0}")]
    NoSuchComponent(Component),
    /// The control plane did not come up in time.
    #[error("{what} not seen within {seconds} s")]
    NotReady {
        /// What was waited for.
        what: &'static str,
        /// The limit.
        seconds: u64,
    },
}

/// The program that plays the nodes' kubelets, started as one more component once the API server is ready.
///
/// It is given `--kubeconfig` (the administrator's), `--control-socket` and `--data-dir` before its own arguments.
#[derive(Debug, Clone)]
pub struct Kubelets {
    /// The program.
    pub program: PathBuf,
    /// Its further arguments.
    pub args: Vec<OsString>,
}

/// What a component does at the moment.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ComponentStatus {
    /// Which one.
    pub component: Component,
    /// Its process id while it lives.
    pub pid: Option<u32>,
    /// What it does.
    pub state: ProcessState,
    /// How often it was started.
    pub starts: u32,
    /// Its log file.
    pub log: PathBuf,
}

/// What a test bed shall be; see [`Testbed::builder`].
#[derive(Debug, Clone)]
pub struct Builder {
    pub(crate) name: String,
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) programs: Option<Programs>,
    pub(crate) scheduler: Option<SchedulerConfig>,
    pub(crate) controller_manager: bool,
    pub(crate) node_monitor_grace_period: Duration,
    pub(crate) extra_args: Vec<(Component, OsString)>,
    pub(crate) kubelets: Option<Kubelets>,
}

impl Builder {
    /// A name that shows in the data folder's name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// A folder that stays at the end; a test bed started on it again has the same objects and identities.
    pub fn data_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(folder.into());
        self
    }

    /// Programs other than those of [`Programs::find`].
    pub fn programs(mut self, programs: Programs) -> Self {
        self.programs = Some(programs);
        self
    }

    /// The scheduler's configuration.
    pub fn scheduler(mut self, config: SchedulerConfig) -> Self {
        self.scheduler = Some(config);
        self
    }

    /// How long a node may be silent before it is NotReady (Kubernetes' default and ours: 50 s).
    pub fn node_monitor_grace_period(mut self, period: Duration) -> Self {
        self.node_monitor_grace_period = period;
        self
    }

    /// Leaves kube-scheduler out.
    pub fn without_scheduler(mut self) -> Self {
        self.scheduler = None;
        self
    }

    /// Leaves kube-controller-manager out: no service accounts, garbage collection or Deployments.
    pub fn without_controller_manager(mut self) -> Self {
        self.controller_manager = false;
        self
    }

    /// One more command-line argument for a component; it comes last and so overrides.
    pub fn extra_arg(mut self, component: Component, arg: impl Into<OsString>) -> Self {
        self.extra_args.push((component, arg.into()));
        self
    }

    /// Starts pretend kubelets as well.
    pub fn kubelets(mut self, kubelets: Kubelets) -> Self {
        self.kubelets = Some(kubelets);
        self
    }

    /// Starts everything; returns when `/readyz` is ok and, with a controller-manager, the default service account and
    /// its CA ConfigMap exist.
    pub async fn start(self) -> Result<Testbed, TestbedError> {
        boot::start(self).await
    }
}

/// A running control plane. Dropped, it kills everything it started and removes its folder.
pub struct Testbed {
    pub(crate) name: String,
    pub(crate) processes: Mutex<BTreeMap<Component, Arc<Process>>>,
    pub(crate) sandbox: Sandbox,
    pub(crate) layout: Layout,
    pub(crate) programs: Programs,
    pub(crate) pki: Pki,
    pub(crate) ports: Ports,
    pub(crate) api_server_url: String,
    pub(crate) admin: kube::Client,
}

impl Testbed {
    /// A test bed with Kubernetes' defaults, to be changed and started.
    pub fn builder() -> Builder {
        Builder {
            name: "testbed".to_owned(),
            data_dir: None,
            programs: None,
            scheduler: Some(SchedulerConfig::Default),
            controller_manager: true,
            node_monitor_grace_period: Duration::from_secs(50),
            extra_args: Vec::new(),
            kubelets: None,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its folder: `logs`, `kubeconfigs`, `pki`, `audit.log`, `etcd`.
    pub fn data_dir(&self) -> &Path {
        &self.layout.data
    }

    /// Where further processes of the same life are started: [`Process::start`].
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// The control plane's programs.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// The certificate authority: further certificates that the API server trusts.
    pub fn pki(&self) -> &Pki {
        &self.pki
    }

    /// `https://127.0.0.1:PORT`.
    pub fn api_server_url(&self) -> &str {
        &self.api_server_url
    }

    /// The Unix socket on which the pretend kubelets take commands.
    pub fn kubelets_socket(&self) -> &Path {
        &self.layout.kubelets_socket
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn admin_client(&self) -> &kube::Client {
        &self.admin
    }

    /// The audit log so far.
    pub fn audit_log(&self) -> Result<AuditLog, AuditError> {
        AuditLog::open(&self.layout.audit_log())
    }

    fn processes(&self) -> MutexGuard<'_, BTreeMap<Component, Arc<Process>>> {
        self.processes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The process of a component.
    pub fn process(&self, component: Component) -> Result<Arc<Process>, TestbedError> {
        self.processes().get(&component).cloned().ok_or(TestbedError::NoSuchComponent(component))
    }

    /// What every component does.
    pub fn status(&self) -> Vec<ComponentStatus> {
        self.processes()
            .iter()
            .map(|(&component, process)| ComponentStatus {
                component,
                pid: process.pid(),
                state: process.state(),
                starts: process.starts(),
                log: process.log_path().to_owned(),
            })
            .collect()
    }

    /// SIGKILL; returns when the process is gone.
    pub fn kill(&self, component: Component) -> Result<(), TestbedError> {
        self.process(component)?.kill();
        Ok(())
    }

    /// SIGSTOP.
    pub fn pause(&self, component: Component) -> Result<(), TestbedError> {
        Ok(self.process(component)?.pause()?)
    }

    /// SIGCONT.
    pub fn resume(&self, component: Component) -> Result<(), TestbedError> {
        Ok(self.process(component)?.resume()?)
    }

    /// Stops a component when it runs, starts it, and waits until it serves again.
    pub async fn restart(&self, component: Component) -> Result<(), TestbedError> {
        self.process(component)?.restart().await?;
        self.wait_ready(component).await
    }

    /// Waits until a component serves.
    pub async fn wait_ready(&self, component: Component) -> Result<(), TestbedError> {
        let process = self.process(component)?;
        match component {
            Component::ApiServer => boot::wait_readyz(&process, &self.admin).await,
            Component::Kubelets => boot::wait_kubelets(&process, &self.layout).await,
            other => boot::wait_serving(&process, other, &self.ports).await,
        }
    }

    /// Gives the scheduler another configuration and restarts it.
    pub async fn set_scheduler_config(&self, config: &SchedulerConfig) -> Result<(), TestbedError> {
        let name = Component::Scheduler.name();
        boot::write_scheduler_config(&self.layout, name, config, &self.layout.kubeconfig("scheduler"))?;
        self.restart(Component::Scheduler).await
    }

    /// Starts a second kube-scheduler beside the test bed's own (which serves `default-scheduler`), speaking with the given
    /// kubeconfig. Its configuration must name profiles of its own.
    pub async fn spawn_scheduler(
        &self,
        name: &str,
        config: &SchedulerConfig,
        kubeconfig: &Path,
    ) -> Result<Process, TestbedError> {
        let port = Arc::new(PortLease::take()?);
        boot::write_scheduler_config(&self.layout, name, config, kubeconfig)?;
        let spec = components::scheduler(&self.programs, &self.layout, name, kubeconfig, &port);
        let process = Process::start(&self.sandbox, spec)?;
        boot::wait_serving_securely(&process, &port).await?;
        Ok(process)
    }

    /// Starts any program in the test bed's sandbox, so that it ends with it.
    pub fn spawn(&self, spec: ProcessSpec) -> Result<Process, TestbedError> {
        Ok(Process::start(&self.sandbox, spec)?)
    }

    /// Starts pretend kubelets on a test bed that runs already.
    pub async fn start_kubelets(&self, kubelets: &Kubelets) -> Result<(), TestbedError> {
        let spec = boot::kubelets_spec(&self.layout, kubelets);
        let process = Arc::new(Process::start(&self.sandbox, spec)?);
        self.processes().insert(Component::Kubelets, process.clone());
        boot::wait_kubelets(&process, &self.layout).await
    }

    /// Ends everything in order, gently: clients first, etcd last, each with its grace. The folder goes unless it was
    /// given with [`Builder::data_dir`].
    pub async fn stop(&self) {
        let processes: Vec<_> = self.processes().values().cloned().collect();
        for process in processes.iter().rev() {
            process.stop().await;
        }
        self.sandbox.close();
    }
}

impl std::fmt::Debug for Testbed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Testbed")
            .field("data", &self.layout.data)
            .field("api_server", &self.api_server_url)
            .finish_non_exhaustive()
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        // One sweep ends everything at once; the processes' own drop then only reaps.
        self.sandbox.close();
    }
}
