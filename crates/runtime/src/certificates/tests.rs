//! The rules of renewal, with the time as an argument.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa};
use x509_parser::prelude::{FromDer as _, ParsedExtension, X509Certificate};

use super::pem::decoded_certificates;
use super::*;

const NAME: &str = "operator.system.svc";

fn subject() -> Subject {
    Subject { names: vec![NAME.into(), "operator.system".into(), "127.0.0.1".into()] }
}

fn day(days: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + days * 86_400).unwrap()
}

fn input<'a>(
    subject: &'a Subject,
    given: Option<&'a ServingCertificate>,
    now: Timestamp,
) -> RenewalInput<'a> {
    RenewalInput { subject, lifetime: CertificateLifetime::default(), now, given }
}

fn step(
    stored: &ServingCertificate,
    given: Option<&ServingCertificate>,
    now: Timestamp,
) -> ServingCertificate {
    renew(stored, &input(&subject(), given, now)).unwrap()
}

fn first() -> ServingCertificate {
    step(&ServingCertificate::default(), None, day(0))
}

type Foreign = CertifiedIssuer<'static, KeyPair>;

/// An authority as made by cert-manager or former chart templates.
fn foreign(name: &str) -> Foreign {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A Secret as cert-manager writes it: `tls.crt`, `tls.key`, `ca.crt`.
fn issued_by(authority: &Foreign) -> ServingCertificate {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    let chain = params.signed_by(&key, authority).unwrap().pem();
    ServingCertificate { chain, key: key.serialize_pem(), bundle: authority.pem(), authority: None }
}

#[test]
fn the_first_step_makes_an_authority_and_a_leaf_that_its_bundle_verifies() {
    let made = first();
    for name in [NAME, "operator.system", "127.0.0.1"] {
        assert!(verifies(&made.chain, &made.bundle, name, day(0)), "{name}");
    }
    assert!(!verifies(&made.chain, &made.bundle, "other.system.svc", day(0)));
    assert!(!verifies(&made.chain, &made.bundle, NAME, day(91)), "it expires");
    usable(&made.chain, &made.key).unwrap();
    // Clients' clocks may be up to a day behind.
    let earlier = day(0) - jiff::SignedDuration::from_hours(23);
    assert!(verifies(&made.chain, &made.bundle, NAME, earlier));
}

#[test]
fn certificates_name_keys_as_clients_that_verify_strictly_demand() {
    let made = first();
    let all = decoded_certificates(&format!("{}{}", made.chain, made.bundle));
    assert_eq!(all.len(), 2);
    for der in all {
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        let has = |wanted: fn(&ParsedExtension<'_>) -> bool| {
            certificate.extensions().iter().any(|extension| wanted(extension.parsed_extension()))
        };
        assert!(has(
            |extension| matches!(extension, ParsedExtension::AuthorityKeyIdentifier(id) if id.key_identifier.is_some())
        ));
        assert!(
            !certificate.is_ca()
                || has(|extension| matches!(extension, ParsedExtension::SubjectKeyIdentifier(_)))
        );
    }
}

#[test]
fn nothing_is_renewed_before_two_thirds_of_its_life() {
    let made = first();
    for days in [0, 1, 30, 59] {
        assert_eq!(step(&made, None, day(days)), made, "day {days}");
    }
    let next = step(&made, None, day(61));
    assert_eq!((&next.bundle, &next.authority), (&made.bundle, &made.authority), "the authority is the same");
    assert!(verifies(&next.chain, &made.bundle, NAME, day(120)));
    assert_ne!(next.key, made.key);
}

#[test]
fn what_was_made_while_the_clock_was_ahead_is_made_again_when_it_is_set_right() {
    let made = step(&ServingCertificate::default(), None, day(3));
    assert!(!verifies(&made.chain, &made.bundle, NAME, day(0)));
    let next = step(&made, None, day(0));
    assert!(verifies(&next.chain, &made.bundle, NAME, day(0)), "also for a client that has read it before");
    assert_eq!(step(&next, None, day(0)), next);
}

#[test]
fn an_authority_serves_to_its_end_and_another_one_follows() {
    let made = first();
    let last = step(&made, None, day(3649));
    assert_eq!(last.authority, made.authority);
    assert!(verifies(&last.chain, &made.bundle, NAME, day(3649)));
    assert!(!verifies(&last.chain, &made.bundle, NAME, day(3650)), "no leaf outlives its authority");
    let next = step(&last, None, day(3651));
    assert_ne!(next.authority, made.authority);
    assert!(verifies(&next.chain, &next.bundle, NAME, day(3651)));
    assert!(!next.bundle.contains(&made.bundle), "an expired authority leaves the bundle");
}

#[test]
fn a_given_certificate_is_taken_at_once_and_its_own_follows_when_it_is_given_no_more() {
    let (first_given, second_given) = (issued_by(&foreign("former")), issued_by(&foreign("latter")));
    let stored = step(&first(), Some(&first_given), day(0));
    assert_eq!(stored, first_given);
    assert_eq!(step(&stored, Some(&first_given), day(1)), stored, "nothing is written again");
    let stored = step(&stored, Some(&second_given), day(1));
    assert_eq!(stored, second_given);
    let own = step(&stored, None, day(2));
    assert!(own.authority.is_some() && verifies(&own.chain, &own.bundle, NAME, day(2)));
    assert!(!verifies(&own.chain, &stored.bundle, NAME, day(2)));
}

#[test]
fn a_given_bundle_is_bounded_and_holds_nothing_that_has_expired() {
    let authorities: Vec<String> = (0..6).map(|n| foreign(&format!("company-{n}")).pem()).collect();
    let expired = {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap().pem()
    };
    let pem = format!("{expired}{}{}", authorities[0], authorities.concat());
    assert_eq!(bundle(&pem, day(0)), authorities[..MAX_AUTHORITIES].concat().replace("\r\n", "\n"));
}

#[test]
fn a_pair_that_does_not_match_is_refused_and_what_is_broken_is_made_anew() {
    let (one, other) = (issued_by(&foreign("a")), issued_by(&foreign("b")));
    let half = ServingCertificate { key: other.key.clone(), ..one.clone() };
    let refused = renew(&one, &input(&subject(), Some(&half), day(0)));
    assert!(matches!(refused, Err(CertificatesError::Pair(_))));
    let made = first();
    for broken in [
        ServingCertificate { key: "rubbish".into(), ..made.clone() },
        ServingCertificate { chain: "rubbish".into(), ..made.clone() },
        ServingCertificate { key: other.key, ..made.clone() },
    ] {
        let next = step(&broken, None, day(1));
        assert!(next != broken && next.authority == made.authority);
        assert!(verifies(&next.chain, &made.bundle, NAME, day(1)));
    }
    let orphan = AuthorityPem { key: "rubbish".into(), ..made.authority.clone().unwrap() };
    let next = step(&ServingCertificate { authority: Some(orphan), ..made.clone() }, None, day(1));
    assert!(next.authority != made.authority && verifies(&next.chain, &next.bundle, NAME, day(1)));
}

#[test]
fn other_names_ask_for_another_leaf() {
    let made = first();
    let subject = Subject { names: vec!["renamed.system.svc".into()] };
    let next = renew(&made, &input(&subject, None, day(1))).unwrap();
    assert_eq!(next.authority, made.authority);
    assert!(verifies(&next.chain, &made.bundle, "renamed.system.svc", day(1)));
}

#[test]
fn the_look_is_more_frequent_than_the_shortest_life() {
    let usual = Duration::from_secs(10);
    let hurried = |every| {
        let args = CertificateLifetimeArgs { renew_certificates_every: Some(every) };
        CertificateLifetime::from(args).check_every(usual)
    };
    assert_eq!(CertificateLifetime::default().check_every(usual), usual);
    assert_eq!((hurried(4), hurried(1)), (Duration::from_secs(1), Duration::from_millis(250)));
}

#[test]
fn keys_are_not_in_debug_output() {
    let made = first();
    let text = format!("{made:?}{:?}", made.authority);
    assert!(!text.contains("PRIVATE KEY"), "{text}");
}
