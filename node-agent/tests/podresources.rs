//! Client and server over a real socket.

use std::sync::Arc;
use std::time::Duration;

use andreas_node_agent::podresources::messages::{ContainerDevices, ContainerResources, PodResources};
use andreas_node_agent::podresources::{Kubelet, PodResourcesError, Source, serve};

struct OnePod;

fn devices() -> Vec<ContainerDevices> {
    let device_ids = vec!["GPU-a".to_owned(), "GPU-b".to_owned()];
    vec![ContainerDevices { resource_name: "nvidia.com/gpu".into(), device_ids }]
}

impl Source for OnePod {
    fn pods(&self) -> Vec<PodResources> {
        let container = ContainerResources {
            name: "trainer".into(),
            devices: devices(),
            ..ContainerResources::default()
        };
        vec![PodResources { name: "job-1-0".into(), namespace: "team".into(), containers: vec![container] }]
    }
}

#[tokio::test]
async fn a_kubelet_that_restarts_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("kubelet.sock");
    let mut kubelet = Kubelet::new(&socket, Duration::from_secs(5));
    assert!(matches!(kubelet.list().await, Err(PodResourcesError::Transport(_))), "nobody is there yet");

    for _ in 0..2 {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let path = socket.clone();
        let end = async {
            let _ = stopped.await;
        };
        let server = tokio::spawn(async move { serve(&path, Arc::new(OnePod), end).await });
        let mut pods = Err(PodResourcesError::Timeout(Duration::ZERO));
        for _ in 0..100 {
            pods = kubelet.list().await;
            if pods.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(pods.unwrap(), OnePod.pods());
        stop.send(()).unwrap();
        server.await.unwrap().unwrap();
    }
}
