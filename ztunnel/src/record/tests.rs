// SPDX-License-Identifier: Apache-2.0

use std::io;

use spiffe::{SpiffeId, TrustDomain};

use super::*;
use ops::workers::Workers;

fn identity(account: &str) -> SpiffeId {
    SpiffeId::new(&TrustDomain::default(), "shop", account).expect("is valid")
}

fn end(name: &str) -> End {
    End {
        pod: format!("{name}-0").into(),
        workload: name.into(),
        namespace: "shop".into(),
        canonical_service: name.into(),
        app: name.into(),
        principal: Some(identity(name)),
        ..End::default()
    }
}

fn opening(reporter: Reporter) -> Opening {
    Opening {
        labels: Labels {
            reporter,
            source: end("web"),
            destination: end("cart"),
            service: None,
            security: Security::MutualTls,
        },
        source: SocketAddr::from(([10, 0, 0, 1], 1234)),
        destination: SocketAddr::from(([10, 0, 0, 2], 15008)),
        authority: Some("10.0.0.2:8080".into()),
    }
}

struct Bench {
    metrics: Metrics,
    recorder: Arc<Recorder>,
    worker: WorkerId,
}

fn bench() -> Bench {
    let metrics = Metrics::default();
    let recorder = Recorder::new(metrics.clone(), 1);
    let worker = Workers::start(1).expect("starts").assign_home();
    Bench {
        metrics,
        recorder,
        worker,
    }
}

impl Bench {
    fn sum(&self, name: &str, flag: &str) -> u64 {
        let flag = format!("response_flags=\"{flag}\"");
        let page = self.metrics.render();
        let of_family = page
            .lines()
            .filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(&flag));
        of_family
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }
}

fn refused() -> Failure {
    let to = SocketAddr::from(([10, 0, 0, 2], 8080));
    Failure::Connect {
        to,
        error: io::Error::from(io::ErrorKind::ConnectionRefused),
    }
}

#[test]
fn a_record_is_opened_and_closed_once() {
    let bench = bench();
    let record = bench.recorder.open(bench.worker, opening(Reporter::Source));
    assert_eq!(bench.sum("istio_tcp_connections_opened_total", "-"), 1);
    assert_eq!(bench.sum("istio_tcp_connections_closed_total", "-"), 0);
    record.close(Ok(()));
    assert_eq!(bench.sum("istio_tcp_connections_closed_total", "-"), 1);
    assert_eq!(bench.sum("istio_tcp_connections_failed_total", "-"), 0);
}

#[test]
fn a_failure_is_counted_under_its_flag_and_listed_with_its_reason() {
    let bench = bench();
    bench
        .recorder
        .open(bench.worker, opening(Reporter::Source))
        .close(Err(refused()));
    assert_eq!(
        bench.sum("istio_tcp_connections_closed_total", "CONNECT"),
        1
    );
    assert_eq!(bench.sum("istio_tcp_connections_closed_total", "-"), 0);
    assert_eq!(
        bench.sum("istio_tcp_connections_failed_total", "CONNECT"),
        1
    );
    let latest = bench.recorder.refusals().latest();
    assert_eq!(latest.len(), 1);
    assert!(
        latest[0].reason.contains("10.0.0.2:8080"),
        "{}",
        latest[0].reason
    );
}

#[test]
fn a_dropped_record_is_closed_as_drained_which_is_nobodys_failure() {
    let bench = bench();
    drop(bench.recorder.open(bench.worker, opening(Reporter::Source)));
    assert_eq!(bench.sum("istio_tcp_connections_closed_total", "-"), 1);
    assert_eq!(bench.sum("istio_tcp_connections_failed_total", "-"), 0);
}

#[test]
fn an_early_refusal_counts_as_failed_without_having_been_opened() {
    let bench = bench();
    let opening = opening(Reporter::Destination);
    let failure = Failure::Loop(opening.destination);
    bench.recorder.refuse_early(
        &opening.labels,
        opening.source,
        opening.destination,
        &failure,
    );
    assert_eq!(
        bench.sum("istio_tcp_connections_failed_total", "NO_ROUTE"),
        1
    );
    assert_eq!(bench.sum("istio_tcp_connections_opened_total", "-"), 0);
}

#[test]
fn byte_counters_exist_at_zero_from_the_start() {
    let bench = bench();
    let _open = bench
        .recorder
        .open(bench.worker, opening(Reporter::Destination));
    let page = bench.metrics.render();
    for name in [
        "istio_tcp_sent_bytes_total",
        "istio_tcp_received_bytes_total",
    ] {
        let line = page
            .lines()
            .find(|line| line.starts_with(&format!("{name}{{")))
            .expect("is there");
        assert!(line.ends_with(" 0"), "{line}");
    }
}

#[test]
fn labels_carry_istios_names_and_unknown_for_what_is_not_known() {
    let bench = bench();
    let _open = bench.recorder.open(bench.worker, opening(Reporter::Source));
    let page = bench.metrics.render();
    let line = page
        .lines()
        .find(|line| line.starts_with("istio_tcp_connections_opened_total{"))
        .expect("is there");
    for label in [
        "reporter=\"source\"",
        "source_workload=\"web\"",
        "source_principal=\"spiffe://cluster.local/ns/shop/sa/web\"",
        "destination_principal=\"spiffe://cluster.local/ns/shop/sa/cart\"",
        "destination_service=\"unknown\"",
        "connection_security_policy=\"mutual_tls\"",
        "request_protocol=\"tcp\"",
        "destination_zone=\"unknown\"",
    ] {
        assert!(line.contains(label), "{label} in {line}");
    }
    assert!(!line.contains("web-0"), "pod names are no labels: {line}");
}

#[test]
fn cached_label_sets_stay_bounded() {
    let bench = bench();
    for number in 0..CACHED_LABEL_SETS + 10 {
        let mut opening = opening(Reporter::Source);
        opening.labels.destination.workload = format!("w{number}").into();
        bench.recorder.open(bench.worker, opening).close(Ok(()));
    }
    assert!(bench.recorder.cached.count() <= CACHED_LABEL_SETS);
}

#[test]
fn refusals_keep_the_latest_only() {
    let bench = bench();
    for _ in 0..300 {
        bench
            .recorder
            .open(bench.worker, opening(Reporter::Source))
            .close(Err(refused()));
    }
    assert_eq!(bench.recorder.refusals().latest().len(), 256);
}

#[test]
fn open_sockets_are_counted_per_reporter() {
    let bench = bench();
    let one = bench.recorder.socket(Reporter::Source);
    let _two = bench.recorder.socket(Reporter::Destination);
    drop(one);
    let page = bench.metrics.render();
    assert!(
        page.contains("istio_tcp_sockets_open{reporter=\"source\"} 0"),
        "{page}"
    );
    assert!(
        page.contains("istio_tcp_sockets_open{reporter=\"destination\"} 1"),
        "{page}"
    );
}

/// A collector that keeps what it is told.
struct Kept(tokio::sync::mpsc::UnboundedSender<LogRecord>);

impl ops::export::Deliver<LogRecord> for Kept {
    async fn deliver(&mut self, batch: Vec<LogRecord>) -> Result<(), String> {
        for record in batch {
            self.0.send(record).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_connection_is_told_to_the_collectors_of_its_own_side() {
    use prost::Message as _;
    let bench = bench();
    let logs = proto::telemetry::ConnectionLogs {
        namespace: "shop".to_owned(),
        everywhere: false,
        sent: None,
        taken: Some(proto::telemetry::Logs {
            own_line: false,
            collectors: vec![proto::waypoint::Collector {
                hostname: "otel.obs".to_owned(),
                port: 4317,
                ..Default::default()
            }],
        }),
    };
    let resource = xds::Resource {
        name: "shop".into(),
        version: String::new(),
        body: logs.encode_to_vec().into(),
    };
    let mut said = crate::telling::Connections(Arc::clone(bench.recorder.telling()));
    assert!(xds::Handler::apply(&mut said, vec![resource], Vec::new()).is_empty());
    let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
    let outgoing = bench.recorder.exporter().outgoing().expect("once");
    tokio::spawn(outgoing.run(move |_: &Arc<Collector>| Kept(sender.clone())));

    let open = |reporter| bench.recorder.open(bench.worker, opening(reporter));
    open(Reporter::Source).close(Ok(()));
    open(Reporter::Destination).close(Err(refused()));
    let patience = std::time::Duration::from_secs(20);
    let first = tokio::time::timeout(patience, told.recv()).await;
    let first = format!("{:?}", first.expect("in time").expect("told"));
    for part in ["inbound", "cart-0", "CONNECT", "bytes_recv"] {
        assert!(first.contains(part), "{part}: {first}");
    }
    assert!(
        told.try_recv().is_err(),
        "the source's side has no collector"
    );
}
