from trainyard_cli.main import main

main()
