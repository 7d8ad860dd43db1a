//! [`Builder`]: what a test bed shall be.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use crate::components::{Component, Kubelets};
use crate::programs::Programs;
use crate::scheduler::SchedulerConfig;
use crate::testbed::Testbed;

/// What a test bed shall be; see [`Testbed::builder`]; [`Builder::start`] makes it.
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
    pub(crate) address: Ipv4Addr,
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

    /// Where the API server is reached (default: 127.0.0.1). Kubelets that are machines of their own need an address that they
    /// can reach; the API server then publishes it as the Service `kubernetes` and speaks with them as `system:masters`.
    pub fn address(mut self, address: Ipv4Addr) -> Self {
        self.address = address;
        self
    }

    /// Starts pretend kubelets as well.
    pub fn kubelets(mut self, kubelets: Kubelets) -> Self {
        self.kubelets = Some(kubelets);
        self
    }
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
            address: Ipv4Addr::LOCALHOST,
        }
    }
}
