//! Lease store on a real API server. Needs the verbs get, create and update.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::api::PostParams;
use kube::core::Request;
use kube::{Client, Resource};
use serde::Serialize;

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
}

/// The request body: the record with its kind.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Sent<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: &'a LeaseMeta,
    spec: &'a LeaseSpec,
}

fn body(metadata: &LeaseMeta, spec: &LeaseSpec) -> Result<Vec<u8>, LeaseError> {
    let sent = Sent { api_version: "coordination.k8s.io/v1", kind: "Lease", metadata, spec };
    serde_json::to_vec(&sent).map_err(|error| LeaseError::Api(error.into()))
}

fn failed(error: kube::Error) -> LeaseError {
    match &error {
        kube::Error::Api(status) if status.code == 404 => LeaseError::NotFound,
        kube::Error::Api(status) if status.code == 409 => LeaseError::Conflict,
        _ => LeaseError::Api(error.into()),
    }
}

fn unsendable(error: kube::core::request::Error) -> LeaseError {
    LeaseError::Api(error.into())
}

impl LeaseStore for KubeLeases {
    async fn get(&self) -> Result<LeaseRecord, LeaseError> {
        let request =
            self.requests().get(&self.name, &kube::api::GetParams::default()).map_err(unsendable)?;
        self.client.request(request).await.map_err(failed)
    }

    async fn create(&self, spec: LeaseSpec) -> Result<LeaseRecord, LeaseError> {
        let metadata =
            LeaseMeta { name: self.name.clone(), namespace: self.namespace.clone(), ..LeaseMeta::default() };
        let body = body(&metadata, &spec)?;
        let request = self.requests().create(&PostParams::default(), body).map_err(unsendable)?;
        self.client.request(request).await.map_err(failed)
    }

    async fn replace(&self, record: &LeaseRecord) -> Result<LeaseRecord, LeaseError> {
        let body = body(&record.metadata, &record.spec)?;
        let request =
            self.requests().replace(&self.name, &PostParams::default(), body).map_err(unsendable)?;
        self.client.request(request).await.map_err(failed)
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
