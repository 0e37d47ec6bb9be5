"""What can be asked, one file a question; each is a public function of ``memsheet``."""
