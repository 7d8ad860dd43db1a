//! The kubelet's side of the API, for tests and pretend kubelets. It lists pods and nothing else.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::LIST;
use super::messages::{ListPodResourcesRequest, ListPodResourcesResponse, PodResources};

/// Source of the responses.
pub trait Source: Send + Sync + 'static {
    /// All pods that hold devices.
    fn pods(&self) -> Vec<PodResources>;
}

/// Why the server failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket cannot be created.
    #[error("cannot listen on the socket")]
    Listen(#[from] std::io::Error),
    /// The server failed while running.
    #[error("the server failed")]
    Serve(#[from] tonic::transport::Error),
}

/// Serves `source` on a new socket at `socket` until `end`. Replaces an old socket, as the kubelet does.
///
/// # Errors
/// When the socket cannot be created or the server fails.
pub async fn serve(
    socket: &Path,
    source: Arc<dyn Source>,
    end: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    let server = tonic::transport::Server::builder().add_service(Lister { source });
    Ok(server.serve_with_incoming_shutdown(UnixListenerStream::new(listener), end).await?)
}

#[derive(Clone)]
struct Lister {
    source: Arc<dyn Source>,
}

impl NamedService for Lister {
    const NAME: &'static str = "v1.PodResourcesLister";
}

struct List(Arc<dyn Source>);

impl UnaryService<ListPodResourcesRequest> for List {
    type Response = ListPodResourcesResponse;
    type Future = Ready<Result<Response<Self::Response>, Status>>;
    fn call(&mut self, _: Request<ListPodResourcesRequest>) -> Self::Future {
        ready(Ok(Response::new(ListPodResourcesResponse { pod_resources: self.0.pods() })))
    }
}

impl Service<http::Request<Body>> for Lister {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let source = Arc::clone(&self.source);
        Box::pin(async move {
            Ok(match request.uri().path() {
                LIST => {
                    let codec: ProstCodec<ListPodResourcesResponse, ListPodResourcesRequest> =
                        ProstCodec::default();
                    Grpc::new(codec).unary(List(source), request).await
                }
                path => Status::unimplemented(path.to_owned()).into_http(),
            })
        })
    }
}
