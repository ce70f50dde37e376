//! Takes several messages of one application in, in their order.

use super::{Ingest, NewEvent, message};
use crate::directory::AppEntry;
use postrider_store::{AcceptError, Accepted};

impl Ingest {
    /// After each `Ok` that message and all that it owes are on the disk, after those before it. Answered in their order.
    ///
    /// `Outdated` are the last of them if the application is not what it was taken for: whoever asks looks at it again, and
    /// hands those in anew. Each by itself would come back in any order.
    pub async fn accept_in_order(
        &self,
        app: &AppEntry,
        mut events: Vec<NewEvent>,
    ) -> Vec<Result<Accepted, AcceptError>> {
        let begin = |event: &mut NewEvent| {
            let span = self.traces.as_ref()?.accepting(event.trace.as_ref(), self.clock.now())?;
            event.trace = Some(span.context());
            Some(span)
        };
        let noted: Vec<_> = events.iter_mut().map(|event| (begin(event), event.content.event_type.clone())).collect();
        let messages = events.into_iter().map(|event| message(app, event, self.clock.now())).collect();
        let answers = self.store.accept_in_order(messages).await;
        if answers.iter().any(|answer| matches!(answer, Err(AcceptError::Outdated))) {
            self.directory.outdated(app);
        }
        for (answer, (span, event_type)) in answers.iter().zip(noted) {
            if let Ok(accepted) = answer {
                self.count(app, &event_type, *accepted);
            }
            // What is handed in anew is traced then.
            let is_over = !matches!(answer, Err(AcceptError::Outdated));
            if let (Some(traces), Some(span)) = (&self.traces, span.filter(|_| is_over)) {
                self.end_span(traces, span, app, event_type, answer);
            }
        }
        answers
    }
}
