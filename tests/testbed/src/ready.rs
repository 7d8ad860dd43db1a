//! How it is known that each component is ready.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::api::Api;
use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;

use crate::components::{Component, Layout, Ports};
use crate::error::TestbedError;
use crate::ports::PortLease;
use crate::process::Process;

/// How long one step of a start may take. A start takes seconds; a busy machine gets room.
const START_LIMIT: Duration = Duration::from_secs(180);

/// Waits until a component itself says that it serves; an open port alone could be a stranger's.
pub(crate) async fn wait_serving(
    process: &Process,
    component: Component,
    ports: &Ports,
) -> Result<(), TestbedError> {
    let port = match component {
        Component::Etcd => {
            let address = format!("127.0.0.1:{}", ports.etcd_client.port());
            return Ok(process.wait_for_http(&address, "/health", START_LIMIT).await?);
        }
        Component::ControllerManager => &ports.controller_manager,
        Component::Scheduler => &ports.scheduler,
        Component::ApiServer | Component::Kubelets => return Ok(()),
    };
    wait_serving_securely(process, port).await
}

/// Waits for the line that Kubernetes' programs log once their port is open.
pub(crate) async fn wait_serving_securely(process: &Process, port: &PortLease) -> Result<(), TestbedError> {
    let line = format!("Serving securely on 127.0.0.1:{}", port.port());
    Ok(process.wait_for_log(&line, START_LIMIT).await?)
}

/// Waits until the API server answers `ok` on `/readyz`.
pub(crate) async fn wait_readyz(api_server: &Process, client: &kube::Client) -> Result<(), TestbedError> {
    let ask = || async {
        let request =
            http::Request::get("/readyz").body(Vec::new()).expect("a constant request is well formed");
        // The client would log each refusal, expected here, as an error.
        let answer = client.request_text(request).with_subscriber(NoSubscriber::new());
        let answer = tokio::time::timeout(Duration::from_secs(3), answer).await;
        matches!(answer, Ok(Ok(text)) if text == "ok")
    };
    Ok(api_server.wait_until("ready (/readyz)", START_LIMIT, ask).await?)
}

/// Waits until pods can be made in the namespace `default`.
pub(crate) async fn wait_default_account(
    controllers: &Process,
    client: &kube::Client,
) -> Result<(), TestbedError> {
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let both = || async {
        matches!(accounts.get_opt("default").await, Ok(Some(_)))
            && matches!(maps.get_opt("kube-root-ca.crt").await, Ok(Some(_)))
    };
    Ok(controllers.wait_until("default service account and CA published", START_LIMIT, both).await?)
}

/// Waits until the pretend kubelets take commands.
pub(crate) async fn wait_kubelets(kubelets: &Process, layout: &Layout) -> Result<(), TestbedError> {
    let connect = || async { tokio::net::UnixStream::connect(&layout.kubelets_socket).await.is_ok() };
    Ok(kubelets.wait_until("taking commands", START_LIMIT, connect).await?)
}
