// Config page of a job: the choice of a replica without a button.
document.addEventListener("change", (event) => {
  if (event.target.matches("#replica select")) event.target.form.requestSubmit();
});
