"""Dashboard: pages that the server renders, and keeps up to date in the browser.

A page is a `View`: a template, and a function that reads its context. The blocks of its template that are named
`live_...` are sent again when they have changed, so a page is written once. For users:
`docs/how-to/follow-jobs.md`; why it is built like this: `docs/design/0013-the-dashboard.md`.
"""
