//! Messages from `proto/api.proto`, with the fields that are used.

use prost::Message;

/// Request for all pods.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListPodResourcesRequest {}

/// All pods with their devices.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListPodResourcesResponse {
    /// All pods, including those without devices.
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

/// A pod.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodResources {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Its containers.
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// A container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerResources {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Devices from device plugins.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
    /// Devices from dynamic resource allocation.
    #[prost(message, repeated, tag = "5")]
    pub dynamic_resources: Vec<DynamicResource>,
}

/// Devices of one resource.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerDevices {
    /// Resource name, for example `nvidia.com/gpu`.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// Device IDs as the plugin names them; UUIDs with NVIDIA's.
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
}

/// Devices of a resource claim.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DynamicResource {
    /// Name of the claim.
    #[prost(string, tag = "2")]
    pub claim_name: String,
    /// Namespace of the claim.
    #[prost(string, tag = "3")]
    pub claim_namespace: String,
    /// Allocated devices.
    #[prost(message, repeated, tag = "4")]
    pub claim_resources: Vec<ClaimResource>,
}

/// A device of a resource claim.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ClaimResource {
    /// Driver name, for example `gpu.nvidia.com`.
    #[prost(string, tag = "2")]
    pub driver_name: String,
    /// The driver's pool.
    #[prost(string, tag = "3")]
    pub pool_name: String,
    /// Name in the pool. The UUID is an attribute in the ResourceSlice.
    #[prost(string, tag = "4")]
    pub device_name: String,
}
