//! The start of a test bed: who is started when.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::builder::Builder;
use crate::components::{self, AUDIT_POLICY, Component, Layout, Ports};
use crate::error::TestbedError;
use crate::kubeconfig;
use crate::pki::Pki;
use crate::ports::NoFreePort;
use crate::process::{Process, ProcessError, ProcessSpec};
use crate::programs::Programs;
use crate::ready::{wait_default_account, wait_readyz, wait_serving};
use crate::sandbox::Sandbox;
use crate::testbed::Testbed;

/// A port leased by us can still be taken by a stranger between the lease and the listening.
const ATTEMPTS: usize = 4;
/// Numbers the sockets of this process that lie outside their test bed's folder.
static SOCKETS: AtomicU32 = AtomicU32::new(0);

impl Builder {
    /// Starts everything; returns when `/readyz` is ok and, with a controller-manager, the default service account and
    /// its CA ConfigMap exist.
    pub async fn start(self) -> Result<Testbed, TestbedError> {
        start_on(self, Ports::take).await
    }
}

async fn start_on(
    builder: Builder,
    mut take_ports: impl FnMut() -> Result<Ports, NoFreePort>,
) -> Result<Testbed, TestbedError> {
    let programs = match &builder.programs {
        Some(given) => given.clone(),
        None => Programs::find().await?,
    };
    let sandbox = match &builder.data_dir {
        Some(folder) => Sandbox::keeping(folder)?,
        None => Sandbox::new(&builder.name)?,
    };
    let layout = Layout { data: sandbox.folder().to_owned(), kubelets_socket: kubelets_socket(&sandbox)? };
    for folder in ["kubeconfigs", "home", "run", "logs"] {
        let path = layout.data.join(folder);
        std::fs::create_dir_all(&path).map_err(|source| TestbedError::File { path, source })?;
    }
    write(&layout.audit_policy(), AUDIT_POLICY)?;
    let pki = Pki::open(&layout.data.join("pki"))?;
    let start = Start { builder, programs, sandbox, layout, pki };

    let mut attempts = 0;
    loop {
        attempts += 1;
        let ports = take_ports()?;
        match start.control_plane(&ports).await {
            Err(TestbedError::Process(ProcessError::Ended { name, tail, .. }))
                if attempts < ATTEMPTS && tail.contains("address already in use") =>
            {
                tracing::info!("a stranger took a port of {name}; starting again with others");
            }
            Err(error) => return Err(error),
            Ok((processes, admin)) => return start.finish(ports, processes, admin).await,
        }
    }
}

struct Start {
    builder: Builder,
    programs: Programs,
    sandbox: Sandbox,
    layout: Layout,
    pki: Pki,
}

type Processes = BTreeMap<Component, Arc<Process>>;

impl Start {
    async fn control_plane(&self, ports: &Ports) -> Result<(Processes, kube::Client), TestbedError> {
        let Self { programs, layout, pki, .. } = self;
        let server = self.api_server_url(ports);
        let identity = |name: &str, user: &str, group| {
            kubeconfig::user_kubeconfig(pki, &layout.kubeconfig(name), &server, user, group)
        };
        let admin = identity("admin", "testbed-admin", Some("system:masters"))?;
        identity("controller-manager", "system:kube-controller-manager", None)?;
        let scheduler = identity("scheduler", "system:kube-scheduler", None)?;
        if let Some(config) = &self.builder.scheduler {
            config.write(&layout.scheduler_config(Component::Scheduler.name()), &scheduler)?;
        }
        let address = self.builder.address;
        let serving = pki.api_server(address)?;

        let mut processes = Processes::new();
        let started = Instant::now();
        // The API server waits for etcd by itself.
        let etcd = self.launch(&mut processes, Component::Etcd, components::etcd(programs, layout, ports))?;
        let mut spec = components::api_server(programs, layout, ports, pki, &serving, address);
        if !address.is_loopback() {
            let client = pki.client("kube-apiserver-kubelet-client", Some("system:masters"))?;
            spec = components::speaking_with_kubelets(spec, &client);
        }
        let api_server = self.launch(&mut processes, Component::ApiServer, spec)?;
        let client = kubeconfig::client(&admin).await?;
        wait_serving(&etcd, Component::Etcd, ports).await?;
        wait_readyz(&api_server, &client).await?;
        tracing::debug!(after = ?started.elapsed(), "API server ready");

        // These end themselves when they meet no API server, so they come second.
        if self.builder.controller_manager {
            let grace = self.builder.node_monitor_grace_period;
            let spec = components::controller_manager(programs, layout, ports, pki, grace);
            self.launch(&mut processes, Component::ControllerManager, spec)?;
        }
        if self.builder.scheduler.is_some() {
            let name = Component::Scheduler.name();
            let spec = components::scheduler(programs, layout, name, &scheduler, &ports.scheduler);
            self.launch(&mut processes, Component::Scheduler, spec)?;
        }
        for (&component, process) in processes.range(Component::ControllerManager..) {
            wait_serving(process, component, ports).await?;
        }
        if let Some(controllers) = processes.get(&Component::ControllerManager) {
            wait_default_account(controllers, &client).await?;
        }
        tracing::debug!(after = ?started.elapsed(), "control plane ready");
        Ok((processes, client))
    }

    fn api_server_url(&self, ports: &Ports) -> String {
        format!("https://{}:{}", self.builder.address, ports.api_server.port())
    }

    fn launch(
        &self,
        processes: &mut Processes,
        component: Component,
        spec: ProcessSpec,
    ) -> Result<Arc<Process>, TestbedError> {
        let extra = self.builder.extra_args.iter().filter(|(of, _)| *of == component);
        let spec = spec.args(extra.map(|(_, arg)| arg)).stop_grace(Duration::from_secs(5));
        let process = Arc::new(Process::start(&self.sandbox, spec)?);
        processes.insert(component, process.clone());
        Ok(process)
    }

    async fn finish(
        self,
        ports: Ports,
        processes: Processes,
        admin: kube::Client,
    ) -> Result<Testbed, TestbedError> {
        let api_server_url = self.api_server_url(&ports);
        let testbed = Testbed {
            name: self.builder.name,
            processes: Mutex::new(processes),
            sandbox: self.sandbox,
            layout: self.layout,
            programs: self.programs,
            pki: self.pki,
            api_server_url,
            ports,
            admin,
            audit_from: 0,
        };
        if let Some(kubelets) = &self.builder.kubelets {
            testbed.start_kubelets(kubelets).await?;
        }
        Ok(testbed)
    }
}

fn kubelets_socket(sandbox: &Sandbox) -> Result<PathBuf, TestbedError> {
    let inside = sandbox.folder().join("run/kubelets.sock");
    // The kernel takes 107 bytes; a kept folder may lie deep.
    if inside.as_os_str().len() < 100 {
        return Ok(inside);
    }
    let name =
        format!("andreas-kubelets-{}-{}.sock", std::process::id(), SOCKETS.fetch_add(1, Ordering::Relaxed));
    let outside = std::env::temp_dir().join(name);
    sandbox.also_remove(&outside)?;
    Ok(outside)
}

fn write(path: &Path, text: &str) -> Result<(), TestbedError> {
    std::fs::write(path, text).map_err(|source| TestbedError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    #[tokio::test(flavor = "multi_thread")]
    async fn ports_taken_by_other_programs_are_changed() {
        // given strangers that take etcd's port before the first start, the scheduler's before the second
        let mut listeners = Vec::new();
        let take = || {
            let ports = Ports::take()?;
            let taken = match listeners.len() {
                0 => Some(&ports.etcd_client),
                1 => Some(&ports.scheduler),
                _ => None,
            };
            listeners
                .extend(taken.map(|lease| TcpListener::bind((Ipv4Addr::LOCALHOST, lease.port())).unwrap()));
            Ok(ports)
        };

        // when a test bed starts, then it comes up on the third set of ports
        let testbed = start_on(Testbed::builder().name("strangers"), take).await.unwrap();
        testbed.kubectl(["get", "namespaces"]).await.unwrap().checked().unwrap();
        assert_eq!(listeners.len(), 2);
    }
}
