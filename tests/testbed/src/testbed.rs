//! [`Testbed`]: one running control plane, and what can be done to it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::audit::{AuditError, AuditLog};
use crate::components::{self, Component, Kubelets, Layout, Ports};
use crate::error::TestbedError;
use crate::pki::Pki;
use crate::ports::PortLease;
use crate::process::{Process, ProcessSpec, ProcessState};
use crate::programs::Programs;
use crate::ready;
use crate::sandbox::Sandbox;
use crate::scheduler::SchedulerConfig;

/// What a component does at the moment.
#[derive(Debug, Clone)]
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
    /// Where the audit log of the present scenario begins, bytes.
    pub(crate) audit_from: u64,
}

impl Testbed {
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
        AuditLog::open(&self.layout.audit_log(), self.audit_from)
    }

    /// Leaves what is recorded already out of [`Testbed::audit_log`].
    pub(crate) fn forget_audit(&mut self) {
        self.audit_from = std::fs::metadata(self.layout.audit_log()).map_or(0, |file| file.len());
    }

    /// Kills a component for good.
    pub(crate) fn forget(&self, component: Component) {
        let process = self.processes().remove(&component);
        if let Some(process) = process {
            process.kill();
        }
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
            Component::ApiServer => ready::wait_readyz(&process, &self.admin).await,
            Component::Kubelets => ready::wait_kubelets(&process, &self.layout).await,
            other => ready::wait_serving(&process, other, &self.ports).await,
        }
    }

    /// Gives the scheduler another configuration and restarts it.
    pub async fn set_scheduler_config(&self, config: &SchedulerConfig) -> Result<(), TestbedError> {
        let name = Component::Scheduler.name();
        config.write(&self.layout.scheduler_config(name), &self.layout.kubeconfig("scheduler"))?;
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
        config.write(&self.layout.scheduler_config(name), kubeconfig)?;
        let spec = components::scheduler(&self.programs, &self.layout, name, kubeconfig, &port);
        let process = Process::start(&self.sandbox, spec)?;
        ready::wait_serving_securely(&process, &port).await?;
        Ok(process)
    }

    /// Starts any program in the test bed's sandbox, so that it ends with it.
    pub fn spawn(&self, spec: ProcessSpec) -> Result<Process, TestbedError> {
        Ok(Process::start(&self.sandbox, spec)?)
    }

    /// Starts pretend kubelets on a test bed that runs already.
    pub async fn start_kubelets(&self, kubelets: &Kubelets) -> Result<(), TestbedError> {
        let spec = components::kubelets(&self.layout, kubelets);
        let process = Arc::new(Process::start(&self.sandbox, spec)?);
        self.processes().insert(Component::Kubelets, process.clone());
        ready::wait_kubelets(&process, &self.layout).await
    }

    /// Ends everything in order, gently: clients first, etcd last, each with its grace. The folder goes unless it was
    /// given with [`Builder::data_dir`](crate::Builder::data_dir).
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
