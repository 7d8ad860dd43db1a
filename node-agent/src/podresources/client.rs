//! Client of the kubelet's PodResources API.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::LIST;
use super::messages::{ListPodResourcesRequest, ListPodResourcesResponse, PodResources};

/// Maximum response size, bytes; the kubelet itself sends at most 16 MiB.
const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;

/// Why a request to the kubelet failed.
#[derive(Debug, thiserror::Error)]
pub enum PodResourcesError {
    /// The socket is missing or does not respond.
    #[error("the kubelet's socket cannot be reached")]
    Transport(#[from] tonic::transport::Error),
    /// The kubelet returned an error, or the response does not decode.
    #[error("the kubelet answered {}: {}", .0.code(), .0.message())]
    Status(#[source] Box<tonic::Status>),
    /// Timeout.
    #[error("the kubelet did not answer within {0:?}")]
    Timeout(Duration),
}

/// A connection to the kubelet's socket, opened on demand.
#[derive(Debug)]
pub struct Kubelet {
    socket: Arc<PathBuf>,
    timeout: Duration,
    channel: Option<Channel>,
}

impl Kubelet {
    /// Creates a client for `socket`; `timeout` is the timeout of each call. Connects on demand.
    #[must_use]
    pub fn new(socket: &Path, timeout: Duration) -> Self {
        Self { socket: Arc::new(socket.to_owned()), timeout, channel: None }
    }

    /// Lists all pods of the node with their devices.
    ///
    /// # Errors
    /// When the kubelet cannot be reached, returns an error or times out. The next call reconnects.
    pub async fn list(&mut self) -> Result<Vec<PodResources>, PodResourcesError> {
        let answer = tokio::time::timeout(self.timeout, self.ask()).await;
        let answer = answer.unwrap_or(Err(PodResourcesError::Timeout(self.timeout)));
        if answer.is_err() {
            self.channel = None;
        }
        Ok(answer?.pod_resources)
    }

    async fn ask(&mut self) -> Result<ListPodResourcesResponse, PodResourcesError> {
        let channel = match &self.channel {
            Some(channel) => channel.clone(),
            None => self.channel.insert(connect(Arc::clone(&self.socket)).await?).clone(),
        };
        let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(MAX_RESPONSE_BYTES);
        grpc.ready().await?;
        let codec: ProstCodec<ListPodResourcesRequest, ListPodResourcesResponse> = ProstCodec::default();
        let request = tonic::Request::new(ListPodResourcesRequest {});
        let answer = grpc.unary(request, PathAndQuery::from_static(LIST), codec).await;
        Ok(answer.map_err(|status| PodResourcesError::Status(Box::new(status)))?.into_inner())
    }
}

async fn connect(socket: Arc<PathBuf>) -> Result<Channel, tonic::transport::Error> {
    // The address only sets the `:authority` header; the kubelet's Go server requires a plain one.
    let endpoint = Endpoint::from_static("http://localhost");
    let connector = service_fn(move |_| {
        let socket = Arc::clone(&socket);
        async move { UnixStream::connect(socket.as_path()).await.map(TokioIo::new) }
    });
    endpoint.connect_with_connector(connector).await
}
