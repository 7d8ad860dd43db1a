//! The whole product on a test bed: control plane, chart, operator, extender, scheduler profile, GPU nodes.
//!
//! Our programs run under the RBAC that the chart renders, never as administrator: either helm installs the chart and the pretend
//! kubelets run its pods ([`Options::install`], see [`crate::install`]), or operator and extender are plain processes with
//! service-account tokens, which is quicker and lets a scenario stop and start them. What [`Cluster::start`] starts ends
//! with it.

mod kubelets;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use andreas_api::slim::SlimTrainingJob;
use andreas_kubelets::{Images, Kubelets as RealNodes, Network, Registry};
use andreas_test_nodes::Forward;
use andreas_testbed::faults::FaultProxy;
use andreas_testbed::wait::until;
use andreas_testbed::{
    Component, Inventory, PortLease, Process, ProcessSpec, SchedulerConfig, Testbed, workspace_binary,
};
use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use kubelets::start_kubelets;

use crate::apply::apply;
use crate::beds;
use crate::chart::{self, SYSTEM};
use crate::install;
use crate::machines::Machines;
use crate::observer::Observer;
use crate::older::Older;
use crate::release;
use crate::storage::Storage;
use crate::supervisor::Supervisor;
use crate::wrong_clock;

pub use crate::options::{A100, Group, Options, T4, V100, a100, short_runs, t4};

/// Address inside the pod network of the API server's Service.
const API_SERVICE: &str = "10.96.0.1:443";
/// Address inside the pod network at which training programs reach the operator.
const PROGRESS_ADDRESS: &str = "10.96.200.1:8443";
/// Its name.
const PROGRESS_HOST: &str = "andreas-operator.andreas-system.svc";
/// How long one of our programs may take to be ready on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(120);

/// One replica of the operator.
pub struct Operator {
    /// The process.
    pub process: Arc<Process>,
    /// Its metrics.
    pub admin: SocketAddr,
    /// Its probes.
    pub probes: SocketAddr,
    /// Its progress endpoint on the machine.
    pub progress: SocketAddr,
    _ports: [Arc<PortLease>; 3],
}

/// Everything that runs.
pub struct Cluster {
    /// Its nodes, where they are real ones. They lose their power before the control plane ends.
    pub real_nodes: Option<Arc<RealNodes>>,
    /// Its nodes, whatever they are.
    pub machines: Arc<dyn Machines>,
    /// The control plane.
    pub testbed: Testbed,
    /// Replicas of the operator that are plain processes.
    pub operators: Vec<Operator>,
    /// The extender, unless in affinity mode or a pod.
    pub extender: Option<Process>,
    /// The scheduler that asks it, unless it is a pod.
    pub scheduler: Option<Process>,
    /// What is seen from outside.
    pub observer: Observer,
    /// Metrics of the extender that is a plain process.
    pub extender_admin: Option<SocketAddr>,
    /// Its probes.
    pub extender_probes: Option<SocketAddr>,
    /// Where it answers the scheduler.
    pub extender_listen: Option<SocketAddr>,
    faults: Option<FaultProxy>,
    options: Options,
    kept: Option<Supervisor>,
    /// What the control plane held before, where another scenario may use it next.
    inventory: Option<Inventory>,
    _registry: Option<Registry>,
    _storage: Storage,
    _ports: Vec<Arc<PortLease>>,
}

fn loopback(lease: &PortLease) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], lease.port()))
}

impl Cluster {
    /// Starts everything; returns when a TrainingJob can be applied.
    ///
    /// # Errors
    /// When a program cannot be built, started, or is not ready in time; the end of its log is in the message.
    pub async fn start(options: Options) -> Result<Self> {
        let (testbed, inventory) = if options.shares_control_plane() {
            let (testbed, inventory) = beds::take(&options).await?;
            (testbed, Some(inventory))
        } else {
            (control_plane(&options).await.context("starting the control plane")?, None)
        };
        let real = !options.real_nodes.is_empty();
        let (mut real_nodes, mut registry) = (None, None);
        let faults = options.fault_proxy.then(|| testbed.fault_proxy()).transpose()?;
        if let Some(values) = &options.install {
            if real {
                let images = if options.release.is_some() { Images::Pulled } else { Images::Loaded };
                let (gpus, runtime) = (options.real_nodes.clone(), options.default_runtime);
                let nodes = RealNodes::start(&testbed, gpus, images, runtime).await;
                real_nodes = Some(Arc::new(nodes.context("starting the nodes")?));
            } else {
                start_kubelets(&testbed, &options, &[]).await?;
            }
            pods_behind_proxy(&testbed, faults.as_ref()).await?;
            if let Some(release) = &options.release {
                registry = Some(Registry::start(&testbed).await?);
                release::install(&testbed, release).await?;
            } else {
                let chart = options.older.as_ref().map_or_else(chart::folder, Older::chart);
                install::upgrade_to(&testbed, &chart, values).await?;
            }
        } else if inventory.is_none() {
            let max_weight = options.max_weight.to_string();
            let kinds = format!("{{{}}}", options.adopt.join(","));
            let adopts = (!options.adopt.is_empty()).then_some(("adoption.kinds", kinds.as_str()));
            let powers = options.node_power.then_some(("nodePower.enabled", "true"));
            let weight = ("policies.maxWeight", max_weight.as_str());
            let hosts = format!("{{{}}}", options.notify_hosts.join(","));
            let told = (!options.notify_hosts.is_empty()).then_some(("notifications.hosts", hosts.as_str()));
            let values: Vec<_> = adopts.into_iter().chain(powers).chain(told).chain([weight]).collect();
            chart::install(&testbed, &values).await.context("installing the chart's objects")?;
        }
        let machines: Arc<dyn Machines> = match &real_nodes {
            Some(nodes) => Arc::new(Arc::clone(nodes)),
            None => Arc::new(crate::nodes::client(&testbed)),
        };
        let observer = if options.simulated {
            Observer::idle()
        } else {
            Observer::start(&testbed.client(), Arc::clone(&machines))
        };
        let storage =
            Storage::start(&testbed.client(), real.then(|| testbed.data_dir().join("claims"))).await?;
        let mut cluster = Self {
            real_nodes,
            machines,
            testbed,
            operators: vec![],
            extender: None,
            scheduler: None,
            observer,
            extender_admin: None,
            extender_probes: None,
            extender_listen: None,
            faults,
            options,
            kept: None,
            inventory,
            _registry: registry,
            _storage: storage,
            _ports: vec![],
        };
        cluster
            .apply(&json!({
                "apiVersion": "andreas.dev/v1alpha1",
                "kind": "EnergyPolicy",
                "metadata": {"name": "default"},
                "spec": cluster.options.policy,
            }))
            .await?;
        if cluster.options.install.is_some() {
            return Ok(cluster);
        }
        for index in 0..cluster.options.operators {
            let operator = cluster.start_operator(index).await?;
            cluster.operators.push(operator);
        }
        let processes = cluster.operators.iter().map(|one| one.process.clone()).collect();
        cluster.kept = Some(Supervisor::where_lease_lost(processes));
        start_kubelets(&cluster.testbed, &cluster.options, &cluster.operators).await?;
        if cluster.options.agents {
            pods_behind_proxy(&cluster.testbed, cluster.faults.as_ref()).await?;
            chart::start_agents(&cluster.testbed).await.context("starting the node agents")?;
        }
        if cluster.options.extender {
            cluster.start_scheduler().await?;
        }
        for operator in &cluster.operators {
            operator
                .process
                .wait_for_http(&operator.probes.to_string(), "/readyz", READY_LIMIT)
                .await
                .context("waiting for the operator")?;
        }
        Ok(cluster)
    }

    /// The proxy between our programs and the API server.
    ///
    /// # Errors
    /// When the cluster was started without [`Options::fault_proxy`].
    pub fn faults(&self) -> Result<&FaultProxy> {
        self.faults.as_ref().context("this cluster has no fault proxy")
    }

    /// A kubeconfig of one of our programs, through the fault proxy where there is one.
    async fn kubeconfig(&self, account: &str, caller: &str) -> Result<PathBuf> {
        let bed = &self.testbed;
        Ok(match &self.faults {
            Some(faults) => {
                bed.kubeconfig_through_proxy(&faults.endpoint(caller)?, caller, SYSTEM, account).await?
            }
            None => bed.kubeconfig_for_service_account(SYSTEM, account).await?,
        })
    }

    /// Whether our extender binds the training pods.
    pub fn binds_by_extender(&self) -> bool {
        self.options.extender
    }

    /// Whether an observer looks at it.
    pub fn is_observed(&self) -> bool {
        !self.options.simulated
    }

    /// Whether pods of the chart have their logs on the nodes. Those of a release need not: its scenario removes it at the end.
    pub fn has_pods_of_chart(&self) -> bool {
        (self.options.install.is_some() || self.options.agents) && self.options.release.is_none()
    }

    /// The environment of a program whose clock is so many seconds ahead, or can be set.
    fn clock(&self, whose: Clock, seconds: i64) -> Result<Vec<(&'static str, String)>> {
        if self.options.clocks_can_be_set {
            return wrong_clock::settable(&whose.file(&self.testbed));
        }
        wrong_clock::environment(seconds)
    }

    /// Sets a wall clock so many seconds ahead of the machine's; the programs notice within a second.
    ///
    /// # Errors
    /// When the cluster was started without [`Options::clocks_can_be_set`].
    pub fn set_clock(&self, whose: Clock, seconds: i64) -> Result<()> {
        if !self.options.clocks_can_be_set {
            bail!("the clocks of this cluster cannot be set");
        }
        wrong_clock::set(&whose.file(&self.testbed), seconds)
    }

    async fn start_operator(&self, index: usize) -> Result<Operator> {
        let bed = &self.testbed;
        let account = chart::operator_account();
        let kubeconfig = self.kubeconfig(account, &format!("operator-{index}")).await?;
        let certificate =
            bed.pki().server("andreas-operator", &[PROGRESS_HOST, "10.96.200.1", "127.0.0.1"])?;
        let ports =
            [Arc::new(PortLease::take()?), Arc::new(PortLease::take()?), Arc::new(PortLease::take()?)];
        let [admin, progress, probes] = [0, 1, 2].map(|n: usize| loopback(&ports[n]));
        let mut spec = ProcessSpec::new(format!("operator-{index}"), workspace_binary("andreas-operator")?)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--namespace", SYSTEM, "--log-format", "text", "--log", self.options.operator_log])
            .env("NO_COLOR", "1")
            .args(["--identity", &format!("operator-{index}")])
            .args(["--max-weight", &self.options.max_weight.to_string()])
            .args(["--admin-listen", &admin.to_string()])
            .args(["--probe-listen", &probes.to_string()])
            .args(["--progress-listen", &progress.to_string()])
            .args(["--progress-url", &format!("https://{PROGRESS_HOST}:8443")])
            .arg("--progress-ca")
            .arg(bed.pki().ca_file())
            .arg("--tls-cert")
            .arg(&certificate.certificate_file)
            .arg("--tls-key")
            .arg(&certificate.key_file)
            .holding(ports[0].clone())
            .holding(ports[1].clone())
            .holding(ports[2].clone());
        if !self.options.extender {
            spec = spec.args(["--scheduler-mode", "affinity"]);
        }
        spec = spec.args(&self.options.operator_args);
        if !self.options.adopt.is_empty() {
            spec = spec.args(["--adopt", &self.options.adopt.join(",")]);
        }
        if !self.options.notify_hosts.is_empty() {
            spec = spec.args(["--notify-hosts", &self.options.notify_hosts.join(",")]);
        }
        for (name, value) in self.clock(Clock::Operator, self.options.operator_clock)? {
            spec = spec.env(name, value);
        }
        Ok(Operator { process: Arc::new(bed.spawn(spec)?), admin, probes, progress, _ports: ports })
    }

    async fn start_scheduler(&mut self) -> Result<()> {
        let bed = &self.testbed;
        let kubeconfig = bed.kubeconfig_for_service_account(SYSTEM, chart::scheduler_account()).await?;
        let ports =
            [Arc::new(PortLease::take()?), Arc::new(PortLease::take()?), Arc::new(PortLease::take()?)];
        let [listen, admin, probes] = [0, 1, 2].map(|n: usize| loopback(&ports[n]));
        let mut spec = ProcessSpec::new("extender", workspace_binary("andreas-extender")?)
            .arg("--kubeconfig")
            .arg(self.kubeconfig(chart::scheduler_account(), "extender").await?)
            .args(["--log-format", "text", "--listen", &listen.to_string()])
            .args(["--admin-listen", &admin.to_string()])
            .args(["--probe-listen", &probes.to_string()]);
        for (name, value) in self.clock(Clock::Extender, 0)? {
            spec = spec.env(name, value);
        }
        let extender = bed.spawn(spec)?;
        extender.wait_for_http(&probes.to_string(), "/readyz", READY_LIMIT).await.context("the extender")?;
        let config = chart::scheduler_configuration(bed, &listen.to_string()).await?;
        let scheduler =
            bed.spawn_scheduler("andreas-scheduler", &SchedulerConfig::Inline(config), &kubeconfig).await?;
        self.extender = Some(extender);
        self.scheduler = Some(scheduler);
        self.extender_admin = Some(admin);
        self.extender_probes = Some(probes);
        self.extender_listen = Some(listen);
        self._ports.extend(ports);
        Ok(())
    }

    /// Sends the training programs' reports to another replica of the operator.
    ///
    /// # Errors
    /// When the pretend kubelets do not answer.
    pub async fn route_progress_to(&self, index: usize) -> Result<()> {
        let operator = self.operators.get(index).context("no such replica")?;
        let forward = Forward {
            listen: PROGRESS_ADDRESS.parse().context("the progress address")?,
            to: operator.progress,
            names: vec![PROGRESS_HOST.into()],
        };
        Ok(crate::nodes::client(&self.testbed).forward(forward).await?)
    }

    /// A namespace whose pods can be made: with its account, which the controller manager makes a moment later.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn make_namespace(&self, name: &str) -> Result<()> {
        self.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(self.testbed.client(), name);
        let made = async || Ok(accounts.get_opt("default").await?.is_some());
        until(&format!("the account of namespace {name}"), READY_LIMIT, made).await?;
        Ok(())
    }

    /// Server-side apply of any object, as administrator.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn apply(&self, object: &Value) -> Result<DynamicObject> {
        apply(&self.testbed.client(), object).await
    }

    /// Patches a TrainingJob's spec (merge patch), as administrator.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn edit(&self, key: &str, spec: &Value) -> Result<()> {
        let (namespace, name) = split(key)?;
        let api: Api<SlimTrainingJob> = Api::namespaced(self.testbed.client(), namespace);
        api.patch(name, &PatchParams::default(), &Patch::Merge(&json!({"spec": spec}))).await?;
        Ok(())
    }

    /// kubectl as administrator; fails with what it printed.
    ///
    /// # Errors
    /// When it ends with another exit code than 0.
    pub async fn kubectl(&self, line: &str) -> Result<String> {
        let output = self.testbed.kubectl(line.split_whitespace()).await?;
        Ok(output.checked()?.stdout)
    }

    /// Ends everything, gently.
    pub async fn stop(mut self) {
        if let Some(nodes) = self.real_nodes.take() {
            nodes.power_off();
        }
        drop(self.kept.take());
        for operator in &self.operators {
            operator.process.stop().await;
        }
        self.testbed.stop().await;
    }

    /// Ends everything; the control plane waits for the next scenario where one may use it.
    pub async fn end(mut self) {
        match self.inventory.take() {
            None => self.stop().await,
            Some(inventory) => {
                let Self { testbed, kept, operators, extender, scheduler, observer, _storage, .. } = self;
                drop((kept, operators, extender, scheduler, observer, _storage));
                beds::give_back(testbed, inventory).await;
            }
        }
    }

    /// The end of every program's log, for a message.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for process in self.operators.iter().map(|o| &*o.process).chain(&self.extender) {
            text += &format!("--- {} ---\n{}\n", process.name(), process.log_tail(40));
        }
        if self.options.install.is_some() {
            text += &install::logs(&self.testbed);
        }
        if let Ok(kubelets) = self.testbed.process(Component::Kubelets) {
            text += &format!("--- kubelets ---\n{}\n", kubelets.log_tail(20));
        }
        text
    }
}

/// Whose wall clock: see [`Cluster::set_clock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// All replicas.
    Operator,
    /// The extender's.
    Extender,
    /// Of all GPU nodes. Containers have the machine's.
    Kubelets,
}

impl Clock {
    fn file(self, testbed: &Testbed) -> PathBuf {
        testbed.data_dir().join(format!("clock-{self:?}").to_lowercase())
    }
}

/// Whatever runs as a pod reaches the API server through the fault proxy, where there is one.
async fn pods_behind_proxy(testbed: &Testbed, faults: Option<&FaultProxy>) -> Result<()> {
    let Some(faults) = faults else { return Ok(()) };
    let listen = API_SERVICE.parse().context("the API server's Service")?;
    let forward = Forward { listen, to: faults.address("pods")?, names: vec![] };
    Ok(crate::nodes::client(testbed).forward(forward).await?)
}

async fn control_plane(options: &Options) -> Result<Testbed> {
    let mut builder =
        Testbed::builder().name(&options.name).node_monitor_grace_period(options.node_monitor_grace_period);
    if !options.real_nodes.is_empty() {
        Network::make()?;
        builder = builder.address(Network::ADDRESS);
    }
    if let Some(folder) = &options.data_dir {
        builder = builder.data_dir(folder);
    }
    for (component, arg) in &options.control_plane_args {
        builder = builder.extra_arg(*component, arg);
    }
    Ok(builder.start().await?)
}

/// `namespace/name` as its two parts.
///
/// # Errors
/// When there is no slash.
pub fn split(key: &str) -> Result<(&str, &str)> {
    key.split_once('/').with_context(|| format!("{key}: wanted namespace/name"))
}
