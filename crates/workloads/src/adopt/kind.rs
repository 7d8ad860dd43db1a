//! The kinds that can be adopted.

use serde_json::Value;

/// A kind that can be adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `batch/v1` Job.
    Job,
    /// JobSet.
    JobSet,
    /// TrainJob of Kubeflow Trainer 2. Its pods are those of the JobSet of its name that Trainer makes for it.
    TrainJob,
    /// PyTorchJob of Kubeflow's training operator.
    PyTorchJob,
    /// RayJob of KubeRay.
    RayJob,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Job, Self::JobSet, Self::TrainJob, Self::PyTorchJob, Self::RayJob];

    /// Group, version that is read and written, name, and name in URLs.
    const fn names(self) -> [&'static str; 4] {
        match self {
            Self::Job => ["batch", "v1", "Job", "jobs"],
            Self::JobSet => ["jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"],
            Self::TrainJob => ["trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs"],
            Self::PyTorchJob => ["kubeflow.org", "v1", "PyTorchJob", "pytorchjobs"],
            Self::RayJob => ["ray.io", "v1", "RayJob", "rayjobs"],
        }
    }

    /// API group.
    pub const fn group(self) -> &'static str {
        self.names()[0]
    }

    /// Version that is read and written.
    pub const fn version(self) -> &'static str {
        self.names()[1]
    }

    /// Name of the kind.
    pub const fn name(self) -> &'static str {
        self.names()[2]
    }

    /// Name in URLs.
    pub const fn plural(self) -> &'static str {
        self.names()[3]
    }

    /// `group/version`.
    pub fn api_version(self) -> String {
        format!("{}/{}", self.group(), self.version())
    }

    /// URL of the kind in a namespace.
    pub fn url(self, namespace: &str) -> String {
        format!("/apis/{}/{}/namespaces/{namespace}/{}", self.group(), self.version(), self.plural())
    }

    /// The kind of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The kind of the object that holds the pod templates; it has the name of the workload.
    pub const fn template_kind(self) -> Self {
        match self {
            Self::TrainJob => Self::JobSet,
            other => other,
        }
    }

    /// JSON pointer to the object that has the field `suspend`.
    pub(crate) const fn suspend_parent(self) -> &'static str {
        match self {
            Self::PyTorchJob => "/spec/runPolicy",
            _ => "/spec",
        }
    }

    /// Whether an object is suspended.
    pub fn is_suspended(self, object: &Value) -> bool {
        object.pointer(self.suspend_parent()).is_some_and(|spec| spec["suspend"] == true)
    }
}
