//! The parts of a test bed and the command lines that start them.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::pki::Pki;
use crate::ports::{NoFreePort, PortLease};
use crate::process::ProcessSpec;
use crate::programs::Programs;

/// One of the processes a test bed itself starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// etcd.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
    /// The pretend kubelets.
    Kubelets,
}

impl Component {
    /// All of them, in the order they start.
    pub const ALL: [Self; 5] =
        [Self::Etcd, Self::ApiServer, Self::ControllerManager, Self::Scheduler, Self::Kubelets];

    /// The program's name, which is also the log file's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubelets => "kubelets",
        }
    }
}

impl std::fmt::Display for Component {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
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

/// The leased ports of one control plane.
#[derive(Debug, Clone)]
pub(crate) struct Ports {
    pub etcd_client: Arc<PortLease>,
    pub etcd_peer: Arc<PortLease>,
    pub api_server: Arc<PortLease>,
    pub controller_manager: Arc<PortLease>,
    pub scheduler: Arc<PortLease>,
}

impl Ports {
    pub fn take() -> Result<Self, NoFreePort> {
        let take = || PortLease::take().map(Arc::new);
        Ok(Self {
            etcd_client: take()?,
            etcd_peer: take()?,
            api_server: take()?,
            controller_manager: take()?,
            scheduler: take()?,
        })
    }
}

/// Where everything of one control plane lies.
#[derive(Debug)]
pub(crate) struct Layout {
    pub data: PathBuf,
    pub kubelets_socket: PathBuf,
}

impl Layout {
    pub fn audit_log(&self) -> PathBuf {
        self.data.join("audit.log")
    }

    pub fn audit_policy(&self) -> PathBuf {
        self.data.join("audit-policy.yaml")
    }

    pub fn kubeconfig(&self, name: &str) -> PathBuf {
        self.data.join("kubeconfigs").join(name)
    }

    pub fn scheduler_config(&self, name: &str) -> PathBuf {
        self.data.join(format!("{name}.yaml"))
    }
}

/// Everything is recorded once, when its answer is complete; Bindings with their body, because a test asks who bound
/// a pod and with which annotations.
pub(crate) const AUDIT_POLICY: &str = r#"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
  - level: RequestResponse
    resources: [{group: "", resources: [pods/binding, pods/eviction]}]
  - level: Metadata
"#;

pub(crate) fn etcd(programs: &Programs, layout: &Layout, ports: &Ports) -> ProcessSpec {
    let (client, peer) = (url("http", &ports.etcd_client), url("http", &ports.etcd_peer));
    flags(
        ProcessSpec::new("etcd", programs.path("etcd")),
        &[
            ("name", "testbed"),
            ("data-dir", &layout.data.join("etcd").to_string_lossy()),
            ("listen-client-urls", &client),
            ("advertise-client-urls", &client),
            ("listen-peer-urls", &peer),
            ("initial-advertise-peer-urls", &peer),
            ("initial-cluster", &format!("testbed={peer}")),
            ("log-level", "warn"),
            ("quota-backend-bytes", "4294967296"),
        ],
    )
    .arg("--unsafe-no-fsync")
    .holding(ports.etcd_client.clone())
    .holding(ports.etcd_peer.clone())
}

pub(crate) fn api_server(
    programs: &Programs,
    layout: &Layout,
    ports: &Ports,
    pki: &Pki,
    serving: &crate::pki::KeyAndCertificate,
    address: Ipv4Addr,
) -> ProcessSpec {
    let (sign, verify) = pki.service_account_key_files();
    let spec = flags(
        ProcessSpec::new("kube-apiserver", programs.path("kube-apiserver")),
        &[
            ("etcd-servers", &url("http", &ports.etcd_client)),
            ("bind-address", &address.to_string()),
            ("advertise-address", &address.to_string()),
            ("secure-port", &ports.api_server.port().to_string()),
            // Loopback addresses are refused in EndpointSlices.
            ("endpoint-reconciler-type", if address.is_loopback() { "none" } else { "lease" }),
            ("tls-cert-file", &serving.certificate_file.to_string_lossy()),
            ("tls-private-key-file", &serving.key_file.to_string_lossy()),
            ("client-ca-file", &pki.ca_file().to_string_lossy()),
            // Unused, but controller-manager and scheduler complain without end when nothing is published.
            ("requestheader-client-ca-file", &pki.ca_file().to_string_lossy()),
            ("requestheader-allowed-names", "no-aggregation-here"),
            ("service-account-issuer", "https://kubernetes.default.svc.cluster.local"),
            ("service-account-signing-key-file", &sign.to_string_lossy()),
            ("service-account-key-file", &verify.to_string_lossy()),
            ("service-cluster-ip-range", "10.96.0.0/16"),
            ("authorization-mode", "Node,RBAC"),
            ("enable-admission-plugins", "NodeRestriction,OwnerReferencesPermissionEnforcement"),
            ("allow-privileged", "true"),
            ("audit-policy-file", &layout.audit_policy().to_string_lossy()),
            ("audit-log-path", &layout.audit_log().to_string_lossy()),
            // Thousands of pretend nodes speak at once.
            ("max-requests-inflight", "1600"),
            ("max-mutating-requests-inflight", "800"),
            ("cert-dir", &layout.data.join("apiserver").to_string_lossy()),
            ("profiling", "false"),
        ],
    );
    spec.holding(ports.api_server.clone())
}

/// What an API server needs that speaks with kubelets: logs, exec, port-forward.
pub(crate) fn speaking_with_kubelets(
    spec: ProcessSpec,
    client: &crate::pki::KeyAndCertificate,
) -> ProcessSpec {
    flags(
        spec,
        &[
            ("kubelet-client-certificate", &client.certificate_file.to_string_lossy()),
            ("kubelet-client-key", &client.key_file.to_string_lossy()),
            ("kubelet-preferred-address-types", "InternalIP"),
        ],
    )
}

pub(crate) fn controller_manager(
    programs: &Programs,
    layout: &Layout,
    ports: &Ports,
    pki: &Pki,
    node_grace: Duration,
) -> ProcessSpec {
    let kubeconfig = layout.kubeconfig("controller-manager");
    let kubeconfig = kubeconfig.to_string_lossy();
    // The monitor must look several times within the grace period to be near it.
    let monitor = (node_grace / 8).clamp(Duration::from_millis(500), Duration::from_secs(5));
    flags(
        ProcessSpec::new("kube-controller-manager", programs.path("kube-controller-manager")),
        &[
            ("kubeconfig", &*kubeconfig),
            ("authentication-kubeconfig", &kubeconfig),
            ("authorization-kubeconfig", &kubeconfig),
            ("leader-elect", "false"),
            ("use-service-account-credentials", "true"),
            ("service-account-private-key-file", &pki.service_account_key_files().0.to_string_lossy()),
            ("root-ca-file", &pki.ca_file().to_string_lossy()),
            ("bind-address", "127.0.0.1"),
            ("secure-port", &ports.controller_manager.port().to_string()),
            ("cert-dir", &layout.data.join("controller-manager").to_string_lossy()),
            ("kube-api-qps", "500"),
            ("kube-api-burst", "1000"),
            ("node-monitor-grace-period", &format!("{}ms", node_grace.as_millis())),
            ("node-monitor-period", &format!("{}ms", monitor.as_millis())),
            // Its default is a folder of the machine, which it makes.
            ("flex-volume-plugin-dir", &layout.data.join("flexvolume").to_string_lossy()),
            ("profiling", "false"),
        ],
    )
    .holding(ports.controller_manager.clone())
}

/// A kube-scheduler of any name; the test bed's own and any second one beside it.
pub(crate) fn scheduler(
    programs: &Programs,
    layout: &Layout,
    name: &str,
    kubeconfig: &Path,
    port: &Arc<PortLease>,
) -> ProcessSpec {
    let kubeconfig = kubeconfig.to_string_lossy();
    flags(
        ProcessSpec::new(name, programs.path("kube-scheduler")),
        &[
            ("config", &*layout.scheduler_config(name).to_string_lossy()),
            ("authentication-kubeconfig", &kubeconfig),
            ("authorization-kubeconfig", &kubeconfig),
            ("bind-address", "127.0.0.1"),
            ("secure-port", &port.port().to_string()),
            ("cert-dir", &layout.data.join(name).to_string_lossy()),
        ],
    )
    .holding(port.clone())
}

pub(crate) fn kubelets(layout: &Layout, kubelets: &Kubelets) -> ProcessSpec {
    ProcessSpec::new(Component::Kubelets.name(), &kubelets.program)
        .arg("--kubeconfig")
        .arg(layout.kubeconfig("admin"))
        .arg("--control-socket")
        .arg(&layout.kubelets_socket)
        .arg("--data-dir")
        .arg(layout.data.join("kubelets"))
        .args(&kubelets.args)
}

pub(crate) fn url(scheme: &str, port: &PortLease) -> String {
    format!("{scheme}://127.0.0.1:{}", port.port())
}

fn flags(spec: ProcessSpec, flags: &[(&str, &str)]) -> ProcessSpec {
    spec.args(flags.iter().map(|(name, value)| format!("--{name}={value}")))
}
