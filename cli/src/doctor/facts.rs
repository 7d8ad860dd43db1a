//! What the checks are made from.

use std::collections::BTreeMap;

use andreas_api::names::GROUP;
use andreas_api::resource_like;
use andreas_api::slim::{SlimEnergyPolicy, metadata, own_metadata};
use andreas_runtime::clock;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cluster::{Cluster, ClusterError, Right, Selection};
use crate::inventory::Objects;

/// Labels of everything that the chart installs.
const OURS: &str = "app.kubernetes.io/name=andreas";
/// Namespace of the kubelets' Leases.
const NODE_LEASES: &str = "kube-node-lease";
/// Plurals of the custom resources.
pub const RESOURCES: [&str; 4] = ["trainingjobs", "trainingprofiles", "energypolicies", "gpunodes"];

/// Something that was read, or why not.
pub type Read<T> = Result<T, ClusterError>;

/// Pods ready of a Deployment, wanted and ready of a DaemonSet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadCounts {
    /// Ready of a Deployment.
    pub ready_replicas: i64,
    /// Wanted by a DaemonSet.
    pub desired_number_scheduled: i64,
    /// Ready of a DaemonSet.
    pub number_ready: i64,
}

/// Pods of a Deployment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeploymentSpec {
    /// Wanted.
    pub replicas: Option<i64>,
    /// Their template, as it is.
    pub template: Value,
}

/// A Deployment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SlimDeployment {
    /// Name and labels.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Pods wanted.
    #[serde(default)]
    pub spec: DeploymentSpec,
    /// Replicas ready.
    #[serde(default)]
    pub status: WorkloadCounts,
}
resource_like!(SlimDeployment, Deployment);

/// A DaemonSet, without its template.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SlimDaemonSet {
    /// Name and labels.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Pods wanted and ready.
    #[serde(default)]
    pub status: WorkloadCounts,
}
resource_like!(SlimDaemonSet, DaemonSet);

/// Certificates of a Secret; its keys are not read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CertificateSecret {
    /// Its name.
    #[serde(deserialize_with = "own_metadata")]
    pub metadata: ObjectMeta,
    /// Its certificates.
    #[serde(default)]
    pub data: Certificates,
}
resource_like!(CertificateSecret, Secret);

/// Certificates, PEM.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Certificates {
    /// The certificate.
    #[serde(rename = "tls.crt")]
    pub certificate: Option<ByteString>,
    /// The authorities that clients trust.
    #[serde(rename = "ca.crt")]
    pub authorities: Option<ByteString>,
}

/// What was read of a cluster.
#[derive(Debug)]
pub struct Facts {
    /// Version of the API server.
    pub version: Read<(String, String)>,
    /// By how much this machine's clock is ahead of the API server's, s.
    pub own_clock: i64,
    /// Definitions by plural.
    pub definitions: BTreeMap<&'static str, Read<CustomResourceDefinition>>,
    /// Deployments of the chart.
    pub deployments: Read<Vec<SlimDeployment>>,
    /// DaemonSets of the chart.
    pub daemon_sets: Read<Vec<SlimDaemonSet>>,
    /// ConfigMaps of the chart.
    pub config_maps: Read<Vec<ConfigMap>>,
    /// Secrets of the operator's namespace.
    pub secrets: Read<Vec<CertificateSecret>>,
    /// Admission policies of the chart.
    pub admission: Read<Vec<ValidatingAdmissionPolicy>>,
    /// Where they are in force.
    pub bindings: Read<Vec<ValidatingAdmissionPolicyBinding>>,
    /// EnergyPolicies.
    pub policies: Read<Vec<SlimEnergyPolicy>>,
    /// Nodes, GpuNodes, jobs.
    pub objects: Read<Objects>,
    /// Times of the kubelets by node, as their own clocks have them.
    pub kubelets: Read<Vec<(String, Timestamp)>>,
}

/// Reads them. What may not be read is an error in its place.
///
/// # Errors
/// When the API server does not answer at all.
pub async fn read(cluster: &Cluster, namespace: &str) -> Result<Facts, ClusterError> {
    let ours = Selection::labels(OURS);
    let version = version(cluster).await;
    if let Err(ClusterError::Unreachable { .. } | ClusterError::Unauthorized(_)) = &version {
        return Err(version.err().unwrap_or_else(|| ClusterError::Failed("the API server".to_owned())));
    }
    let own_clock = Timestamp::now().as_second() - clock::now().as_second();
    let mut definitions = BTreeMap::new();
    for plural in RESOURCES {
        definitions.insert(plural, cluster.get(None, &format!("{plural}.{GROUP}")).await);
    }
    let items = |listed: crate::cluster::Listed<Lease>| {
        let of = |lease: Lease| {
            let renewed = lease.spec.and_then(|spec| spec.renew_time)?;
            Some((lease.metadata.name?, renewed.0))
        };
        listed.items.into_iter().filter_map(of).collect()
    };
    Ok(Facts {
        version,
        own_clock,
        definitions,
        deployments: cluster.list(None, &ours).await.map(|list| list.items),
        daemon_sets: cluster.list(None, &ours).await.map(|list| list.items),
        config_maps: cluster.list(Some(namespace), &ours).await.map(|list| list.items),
        secrets: cluster.list(Some(namespace), &Selection::default()).await.map(|list| list.items),
        admission: cluster.list(None, &ours).await.map(|list| list.items),
        bindings: cluster.list(None, &ours).await.map(|list| list.items),
        policies: cluster.list(None, &Selection::default()).await.map(|list| list.items),
        objects: Objects::read(cluster).await,
        kubelets: cluster.list::<Lease>(Some(NODE_LEASES), &Selection::default()).await.map(items),
    })
}

/// Major and minor version of the API server.
async fn version(cluster: &Cluster) -> Read<(String, String)> {
    let right = Right { verb: "get", group: String::new(), resource: "version".into(), namespace: None };
    let answer = cluster.client().apiserver_version().await;
    let answer = answer.map_err(|error| ClusterError::from_client(error, cluster.url(), &right, None))?;
    Ok((answer.major, answer.minor))
}

/// A condition of a list.
pub fn condition<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}
