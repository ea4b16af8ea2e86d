//! Exporters that a reload takes out while they still have something to send.

use std::sync::atomic::AtomicBool;

use super::*;

/// Has something that only one can have (a file, a port, a stored queue) from its start to the end
/// of a slow shutdown.
struct Holder {
    held: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
}

#[async_trait]
impl Exporter for Holder {
    async fn start(&mut self) -> Result<(), ExportError> {
        match self.held.swap(true, SeqCst) {
            true => Err(ExportError::Fatal("somebody else has it".into())),
            false => Ok(()),
        }
    }
    async fn export(&mut self, _: Batch) -> Result<(), ExportError> {
        Ok(())
    }
    async fn shutdown(&mut self, _: Duration) -> Result<(), ExportError> {
        tokio::time::sleep(Duration::from_millis(100)).await;
        self.sent.fetch_add(1, SeqCst);
        self.held.store(false, SeqCst);
        Ok(())
    }
}

/// Graphs without the holder and with it.
fn graphs(seen: &Seen, sent: &Arc<AtomicU64>) -> impl Fn(bool) -> Graph + use<> {
    let (held, sent, seen) = (Arc::new(AtomicBool::new(false)), sent.clone(), seen.clone());
    let ticker = Ticker { live: true, ..Ticker::to(u64::MAX) };
    move |with| {
        let mut graph = graph(&ticker, (0, Step::default()), (0, Keeper::new(&seen)));
        if with {
            let (held, sent) = (held.clone(), sent.clone());
            graph.exporters.push(Part {
                id: "holder".into(),
                revision: Value::from(0),
                make: Arc::new(move || {
                    Ok(Box::new(Holder { held: held.clone(), sent: sent.clone() }))
                }),
            });
            graph.pipelines[0].exporters.push("holder".into());
        }
        graph
    }
}

#[tokio::test]
async fn one_that_comes_back_waits_for_itself() {
    let (seen, sent) = (Seen::default(), Arc::default());
    let graph = graphs(&seen, &sent);
    let mut runner = Runner::start(graph(true), options()).await.unwrap();
    for _ in 0..3 {
        runner.apply(graph(false)).await.unwrap();
        runner.apply(graph(true)).await.unwrap();
    }
    assert_eq!(runner.drain().await, Outcome::Done);
    assert_eq!(sent.load(SeqCst), 4);
}

#[tokio::test]
async fn the_end_waits_for_one_that_left_just_before() {
    let (seen, sent) = (Seen::default(), Arc::default());
    let graph = graphs(&seen, &sent);
    let mut runner = Runner::start(graph(true), options()).await.unwrap();
    runner.apply(graph(false)).await.unwrap();
    assert_eq!(runner.drain().await, Outcome::Done);
    assert_eq!(sent.load(SeqCst), 1, "what it held was sent");
}
