//! Metrics of certificates: validity period and errors.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::Validity;

crate::metrics! {
    /// Metrics of programs that serve TLS; see [`CertificateMetrics::register`].
    pub const CERTIFICATES;

    ISSUED = gauge("andreas_certificate_issued_timestamp_seconds", &["certificate"],
        "Begin of the validity of a certificate in use, seconds since 1970");
    EXPIRES = gauge("andreas_certificate_expiry_timestamp_seconds", &["certificate"],
        "End of the validity of a certificate in use, seconds since 1970");
    ERRORS = counter("andreas_certificate_errors_total", &["certificate"],
        "Times that a certificate could not be read, made or stored; the one in use stays");
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Label {
    certificate: &'static str,
}

type InUse = Arc<Mutex<BTreeMap<&'static str, Validity>>>;

/// Certificate metrics of a program. Clones share the values.
#[derive(Clone, Debug, Default)]
pub struct CertificateMetrics {
    in_use: InUse,
    errors: Family<Label, Counter>,
}

impl CertificateMetrics {
    /// Adds the metrics to `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let this = Self::default();
        registry.register_collector(Box::new(Scraped(Arc::clone(&this.in_use))));
        ERRORS.register(registry, this.errors.clone());
        this
    }

    /// Reports the certificate in use; a change is logged.
    pub fn record_validity(&self, certificate: &'static str, validity: Validity) {
        let former = self.in_use.lock().insert(certificate, validity);
        let _ = self.errors.get_or_create(&Label { certificate });
        if former.is_some_and(|former| former != validity) {
            tracing::info!(certificate, until = %validity.until, "certificate renewed");
        }
    }

    /// Counts a failure to read, make or store a certificate.
    pub fn record_failure(&self, certificate: &'static str) {
        self.errors.get_or_create(&Label { certificate }).inc();
    }
}

#[derive(Debug)]
struct Scraped(InUse);

impl Collector for Scraped {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let in_use = self.0.lock().clone();
        if in_use.is_empty() {
            return Ok(());
        }
        ISSUED.encode(&mut encoder, |values| {
            in_use.iter().try_for_each(|(certificate, validity)| {
                values.write(&[("certificate", *certificate)], validity.from.as_second() as f64)
            })
        })?;
        EXPIRES.encode(&mut encoder, |values| {
            in_use.iter().try_for_each(|(certificate, validity)| {
                values.write(&[("certificate", *certificate)], validity.until.as_second() as f64)
            })
        })
    }
}
