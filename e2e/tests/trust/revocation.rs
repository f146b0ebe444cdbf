// SPDX-License-Identifier: Apache-2.0
//! A certificate that is taken back: at either end, for those who connect and those who are connected, and one's own.

use std::time::{Duration, SystemTime};

use anyhow::ensure;
use e2e::access_log::Entry;
use e2e::handle::{Held, eventually};
use e2e::topology::Node;
use rcgen::{
    CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
};

use crate::ground::{Newcomer, Turn, turn};

const WEB: &str = "spiffe://cluster.local/ns/shop/sa/web";

/// A proxy looks each second and takes a change once it has settled.
const NOTICED: Duration = Duration::from_secs(10);

/// A list of one of the lab's own authorities: `ca` signs workloads, `root` signs it.
fn list(turn: &Turn, authority: &str, serials: &[String]) -> String {
    let folder = turn.lab.state().istiod().join("ca");
    let text = |name: String| std::fs::read_to_string(folder.join(name)).unwrap();
    let key = KeyPair::from_pem(&text(format!("{authority}-key.pem"))).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&text(format!("{authority}-cert.pem")), key).unwrap();
    let now = SystemTime::now();
    let revoked = serials.iter().map(|serial| RevokedCertParams {
        serial_number: SerialNumber::from_slice(&bytes(serial)),
        revocation_time: now.into(),
        reason_code: None,
        invalidity_date: None,
    });
    let params = CertificateRevocationListParams {
        this_update: now.into(),
        next_update: (now + Duration::from_secs(3600)).into(),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: revoked.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(&issuer).unwrap().pem().unwrap()
}

/// A number in decimal as big-endian bytes.
fn bytes(decimal: &str) -> Vec<u8> {
    let mut bytes = vec![0u8];
    for digit in decimal.bytes() {
        let mut carry = u32::from(digit - b'0');
        for byte in bytes.iter_mut().rev() {
            carry += u32::from(*byte) * 10;
            *byte = carry as u8;
            carry >>= 8;
        }
        if carry > 0 {
            bytes.insert(0, carry as u8);
        }
    }
    bytes
}

/// A live connection from node a to node b in a tunnel of its own, and the serial numbers that its two ends may have
/// shown: a renewal may have come in between.
struct Live<'l> {
    client: Newcomer<'l>,
    held: Held,
    of_client: Vec<String>,
    of_server: Vec<String>,
}

impl<'l> Live<'l> {
    fn new(turn: &'l Turn, name: &'static str) -> Self {
        let client = turn.newcomer(name);
        let leaf =
            |node, identity: &str| turn.certificates(node, identity).unwrap().remove(0).serial;
        let serials = || [leaf(Node::A, &client.identity), leaf(Node::B, WEB)];
        // So that there is a certificate to be read.
        works(turn, &client).unwrap();
        let before = serials();
        let held = turn.lab.hold(&client.pod, turn.echo("shop/web-b")).unwrap();
        let [of_client, of_server] =
            [0, 1].map(|end| vec![before[end].clone(), serials()[end].clone()]);
        Self {
            client,
            held,
            of_client,
            of_server,
        }
    }
}

fn rejections(turn: &Turn, node: Node, reporter: &str) -> f64 {
    let metrics = turn.lab.metrics(node).unwrap();
    metrics.sum(
        "istio_crl_policy_rejections_total",
        &[("reporter", reporter)],
    )
}

fn is_revoked(entry: &Entry) -> bool {
    let error = entry.error().unwrap_or_default();
    error.starts_with("peer's certificate with serial ") && error.contains(" was revoked by ")
}

fn flagged(turn: &Turn, node: Node, reporter: &str) -> f64 {
    let metrics = turn.lab.metrics(node).unwrap();
    let labels = [("reporter", reporter), ("response_flags", "CERT_REVOKED")];
    metrics.sum("istio_tcp_connections_closed_total", &labels)
}

fn works(turn: &Turn, client: &Newcomer<'_>) -> anyhow::Result<()> {
    let target = turn.echo("shop/web-b").to_string();
    let report = turn.lab.traffic(&client.pod, &["echo", &target])?;
    ensure!(report.is_done(), "{}", report.outcome);
    Ok(())
}

#[test]
fn a_revoked_client_is_cut_off_and_kept_out_until_it_has_another_certificate() {
    let turn = turn();
    let before = rejections(&turn, Node::B, "destination");
    let live = Live::new(&turn, "robbed");
    turn.revoke(Node::B, &list(&turn, "ca", &live.of_client));
    let report = live.held.ended(NOTICED).unwrap();
    assert!(!report.is_done(), "{report:?}");
    let entry = turn
        .lab
        .access_entry(Node::B, "a revoked client", |entry| {
            is_revoked(entry) && entry.is("src.identity", &live.client.identity)
        })
        .unwrap();
    assert!(entry.is("dst.identity", WEB), "{entry}");
    assert!(flagged(&turn, Node::B, "destination") >= 1.0);
    let refused = rejections(&turn, Node::B, "destination");
    assert!(refused > before, "{refused} after {before}");
    // Its own proxy knows nothing of it; what comes next, within the half of its life, is another one.
    eventually("the client is back", Duration::from_secs(30), || {
        works(&turn, &live.client)
    })
    .unwrap();
}

#[test]
fn a_revoked_server_is_left_by_its_clients() {
    let turn = turn();
    let live = Live::new(&turn, "careful");
    turn.revoke(Node::A, &list(&turn, "ca", &live.of_server));
    let report = live.held.ended(NOTICED).unwrap();
    assert!(!report.is_done(), "{report:?}");
    turn.lab
        .access_entry(Node::A, "a revoked server", |entry| {
            is_revoked(entry) && entry.is("src.identity", &live.client.identity)
        })
        .unwrap();
    assert!(flagged(&turn, Node::A, "source") >= 1.0);
    assert!(rejections(&turn, Node::A, "source") >= 1.0);
    eventually("the server is back", Duration::from_secs(30), || {
        works(&turn, &live.client)
    })
    .unwrap();
}

#[test]
fn a_proxy_whose_own_certificate_is_revoked_says_so_and_asks_for_another() {
    let turn = turn();
    let client = turn.newcomer("self-aware");
    works(&turn, &client).unwrap();
    let serial = |index: usize| {
        let chain = turn.certificates(Node::A, &client.identity).unwrap();
        chain[index].serial.clone()
    };
    let revoked = serial(0);
    turn.revoke(Node::A, &list(&turn, "ca", std::slice::from_ref(&revoked)));
    eventually("another certificate", NOTICED, || {
        ensure!(serial(0) != revoked, "still the revoked one");
        turn.log_has(Node::A, "own certificate is revoked")
    })
    .unwrap();
    works(&turn, &client).unwrap();

    // No other certificate helps while the authority itself is revoked.
    turn.revoke(Node::A, &list(&turn, "root", &[serial(1)]));
    eventually("not ready", NOTICED, || {
        let error = turn.ready(Node::A).err().map(|error| error.to_string());
        let told = error.unwrap_or_default();
        ensure!(
            told.contains("own certificates, one of which is revoked"),
            "{told:?}"
        );
        Ok(())
    })
    .unwrap();
    let metrics = turn.lab.metrics(Node::A).unwrap();
    assert!(metrics.sum("culvert_own_certificates_revoked", &[]) >= 1.0);
    turn.revoke(Node::A, "");
    turn.all_ready();
    works(&turn, &client).unwrap();
}

#[test]
fn a_list_that_cannot_be_read_leaves_in_force_what_was() {
    let turn = turn();
    let live = Live::new(&turn, "unmoved");
    turn.revoke(Node::B, "-----BEGIN X509 CRL-----\nAAAA");
    eventually("the mistake is named", NOTICED, || {
        turn.log_has(Node::B, "CRL_PATH: cannot be read")
    })
    .unwrap();
    turn.ready(Node::B).unwrap();
    // A list of another authority, about the very same numbers.
    turn.revoke(Node::B, &list(&turn, "root", &live.of_client));
    eventually("the list is taken", NOTICED, || {
        let metrics = turn.lab.metrics(Node::B)?;
        ensure!(
            metrics.sum("culvert_crl_certificates", &[]) >= 1.0,
            "not yet"
        );
        Ok(())
    })
    .unwrap();
    assert!(live.held.release().unwrap().is_done(), "nobody was revoked");
}
