//! Messages after `proto/api.proto`, with the fields that are used.

use prost::Message;

/// Asks for all pods.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListPodResourcesRequest {}

/// All pods with their devices.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListPodResourcesResponse {
    /// The pods, those without devices too.
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

/// One pod.
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

/// One container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerResources {
    /// Name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Devices of device plugins.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
    /// Devices of dynamic resource allocation.
    #[prost(message, repeated, tag = "5")]
    pub dynamic_resources: Vec<DynamicResource>,
}

/// Devices of one resource.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerDevices {
    /// For example `nvidia.com/gpu`.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// As the device plugin names them: with NVIDIA's, UUIDs.
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
}

/// Devices of a claim.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DynamicResource {
    /// Name of the claim.
    #[prost(string, tag = "2")]
    pub claim_name: String,
    /// Its namespace.
    #[prost(string, tag = "3")]
    pub claim_namespace: String,
    /// What was given.
    #[prost(message, repeated, tag = "4")]
    pub claim_resources: Vec<ClaimResource>,
}

/// One device of a claim.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ClaimResource {
    /// For example `gpu.nvidia.com`.
    #[prost(string, tag = "2")]
    pub driver_name: String,
    /// Pool of the driver.
    #[prost(string, tag = "3")]
    pub pool_name: String,
    /// Name in the pool; the UUID is an attribute in the ResourceSlice.
    #[prost(string, tag = "4")]
    pub device_name: String,
}

/// Asks for all devices.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AllocatableResourcesRequest {}

/// All devices that can be given to pods.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AllocatableResourcesResponse {
    /// Devices by resource.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<ContainerDevices>,
}
