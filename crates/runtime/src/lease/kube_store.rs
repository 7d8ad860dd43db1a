//! Lease store on a real API server. Needs the verbs get, create and update.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::api::{GetParams, PostParams};
use kube::core::Request;
use kube::core::request::Error as RequestError;
use kube::{Client, Resource};
use serde_json::json;

use super::{LeaseError, LeaseMeta, LeaseRecord, LeaseStore};

/// One Lease by namespace and name.
#[derive(Clone)]
pub struct KubeLeases {
    client: Client,
    namespace: String,
    name: String,
}

impl KubeLeases {
    /// The Lease `name` in `namespace`; the first candidate creates it.
    #[must_use]
    pub fn new(client: Client, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { client, namespace: namespace.into(), name: name.into() }
    }

    fn requests(&self) -> Request {
        Request::new(Lease::url_path(&(), Some(&self.namespace)))
    }

    async fn send(
        &self,
        request: Result<http::Request<Vec<u8>>, RequestError>,
    ) -> Result<LeaseRecord, LeaseError> {
        let request = request.map_err(|error| LeaseError::Api(error.into()))?;
        self.client.request(request).await.map_err(failed)
    }
}

/// The request body: the record with its kind.
fn body(metadata: &LeaseMeta, spec: &LeaseSpec) -> Vec<u8> {
    let sent =
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec});
    sent.to_string().into_bytes()
}

fn failed(error: kube::Error) -> LeaseError {
    match &error {
        kube::Error::Api(status) if status.code == 404 => LeaseError::NotFound,
        kube::Error::Api(status) if status.code == 409 => LeaseError::Conflict,
        _ => LeaseError::Api(error.into()),
    }
}

impl LeaseStore for KubeLeases {
    async fn get(&self) -> Result<LeaseRecord, LeaseError> {
        self.send(self.requests().get(&self.name, &GetParams::default())).await
    }

    async fn create(&self, spec: LeaseSpec) -> Result<LeaseRecord, LeaseError> {
        let metadata =
            LeaseMeta { name: self.name.clone(), namespace: self.namespace.clone(), ..LeaseMeta::default() };
        self.send(self.requests().create(&PostParams::default(), body(&metadata, &spec))).await
    }

    async fn replace(&self, record: &LeaseRecord) -> Result<LeaseRecord, LeaseError> {
        let body = body(&record.metadata, &record.spec);
        self.send(self.requests().replace(&self.name, &PostParams::default(), body)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Method, Request, Response, StatusCode};
    use http_body_util::BodyExt;
    use kube::client::Body;

    #[tokio::test]
    async fn replaces_with_the_version_read_and_keeps_labels_but_not_managed_fields() {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let server = tokio::spawn(async move {
            // given: a lease with labels, and managedFields nested deeper than any decoder of whole objects goes
            let deep = format!("{}1{}", "{\"f:a\":".repeat(200), "}".repeat(200));
            let stored = format!(
                r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{{"name":"l","namespace":"n","uid":"u",
                "resourceVersion":"41","labels":{{"team":"a"}},"managedFields":[{{"fieldsV1":{deep}}}]}},
                "spec":{{"holderIdentity":"other"}}}}"#
            );
            let (request, send) = handle.next_request().await.unwrap();
            assert_eq!(request.method(), Method::GET);
            assert_eq!(request.uri().path(), "/apis/coordination.k8s.io/v1/namespaces/n/leases/l");
            send.send_response(Response::new(Body::from(stored.into_bytes())));

            let (request, send) = handle.next_request().await.unwrap();
            assert_eq!(request.method(), Method::PUT);
            let sent = request.into_body().collect().await.unwrap().to_bytes();
            let sent: serde_json::Value = serde_json::from_slice(&sent).unwrap();
            assert_eq!(sent["metadata"]["resourceVersion"], "41");
            assert_eq!(sent["metadata"]["labels"]["team"], "a");
            assert!(sent["metadata"].get("managedFields").is_none());
            let refusal = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","message":"x","code":409}"#;
            let response = Response::builder()
                .status(StatusCode::CONFLICT)
                .body(Body::from(refusal.as_bytes().to_vec()));
            send.send_response(response.unwrap());
        });

        let store = KubeLeases::new(Client::new(service, "default"), "n", "l");
        let record = store.get().await.unwrap();
        assert_eq!(record.spec.holder_identity.as_deref(), Some("other"));
        assert!(matches!(store.replace(&record).await, Err(LeaseError::Conflict)));
        server.await.unwrap();
    }
}
